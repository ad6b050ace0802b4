"""Two profiles side by side: what changed, by how much, and what explains it."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.profile import Kernel, Profiled
from flatout.reporting.profile import compare, compare_screen
from flatout.reporting.profile.compare import ProfileComparison
from machines.healthy import changed
from reporting import profiled_examples as examples


def compared(before: Profiled, after: Profiled) -> ProfileComparison:
    return compare.compare(before, after)


def drawn(comparison: ProfileComparison, width: int = 80) -> str:
    file = io.StringIO()
    names = ("naive.json", "tuned.json")
    compare_screen.compared(comparison, names, Console(file=file, width=width))
    return file.getvalue()


@pytest.fixture
def tuned() -> ProfileComparison:
    return compared(examples.naive(), examples.healthy())


def test_the_changes_of_the_parts_are_all_of_the_difference(tuned: ProfileComparison) -> None:
    assert tuned.before_ms == pytest.approx(411.74) and tuned.after_ms == pytest.approx(100.0)
    assert sum(change.ms for change in tuned.parts) == pytest.approx(100.0 - 411.74)
    assert tuned.parts[0].kind is Kind.WAIT_DATA
    assert tuned.ratio == pytest.approx(4.1174)


def test_findings_gone_and_new() -> None:
    before = dataclasses.replace(examples.naive(), findings=(examples.NO_WORKERS, examples.KEPT))
    after = dataclasses.replace(examples.healthy(), findings=(examples.KEPT, examples.LAYOUT))
    comparison = compared(before, after)
    assert [finding.code for finding in comparison.gone] == ["DATA001"]
    assert [finding.code for finding in comparison.new] == ["KERN014"]


def test_kernels_that_appeared_vanished_and_changed() -> None:
    base = examples.healthy()
    kernels = base.profile.kernels
    half = dataclasses.replace(kernels[0], ms=kernels[0].ms / 2, calls=80.0)
    flash = Kernel("flash_fwd_kernel", Kind.ATTENTION, 12.0, 6.0)
    other = changed(base, profile__kernels=(half, *kernels[1:-1], flash))
    comparison = compared(base, other)
    calls = {
        change.name: (change.calls_before, change.calls_after) for change in comparison.kernels
    }
    assert calls[half.name] == (160.0, 80.0)
    assert calls["flash_fwd_kernel"] == (0.0, 12.0)
    assert calls[kernels[-1].name][1] == 0.0
    assert {change.name: change.ms for change in comparison.kernels}[half.name] == pytest.approx(
        -half.ms
    )


def test_settings_of_the_job_that_differ_are_named() -> None:
    base = examples.healthy()
    other = changed(base, profile__job__loaders__0__num_workers=0, profile__job__autocast=None)
    settings = {
        (setting.name, setting.before, setting.after) for setting in compared(base, other).settings
    }
    assert settings == {("loaders[0].num_workers", "16", "0"), ("autocast", "bfloat16", "-")}


def test_another_batch_size_is_compared_per_sample() -> None:
    base = examples.healthy()
    comparison = compared(base, changed(base, profile__seen__samples=512.0))
    assert comparison.ratio == pytest.approx(2.0)
    assert any("256 samples, then 512" in caveat for caveat in comparison.caveats)


@pytest.mark.parametrize("name", examples.ALL)
def test_of_itself_nothing_changed(name: str) -> None:
    comparison = compared(examples.ALL[name](), examples.ALL[name]())
    assert comparison.ratio == 1.0 and comparison.kernels == comparison.lines == ()
    assert comparison.gone == comparison.new == comparison.settings == comparison.caveats[:0] == ()
    assert not any(change.ms for change in comparison.parts)


def test_the_screen(tuned: ProfileComparison) -> None:
    text = drawn(tuned)
    assert text.isascii()
    assert all(len(line) <= 80 for line in text.splitlines())
    lines = text.splitlines()
    assert lines[0] == "verdict   412 ms -> 100 ms per step, 4.12x as fast per sample"
    assert lines[1] == "profiles  naive.json -> tuned.json"
    assert "anatomy   waiting for data              232 ms   0.40 ms   -232 ms  ####" in text
    assert "          step                          412 ms    100 ms   -312 ms\n" in text
    assert "gone      DATA001 train.py:80: the loader has no worker" in text


def test_foreign_text_cannot_reach_the_terminal() -> None:
    text = drawn(compared(examples.hostile(), examples.naive()))
    assert "\x1b" not in text and "\x07" not in text


def test_the_document(tuned: ProfileComparison) -> None:
    published = compare.document(tuned)
    assert json.loads(json.dumps(published, allow_nan=False)) == published
    assert published["schema"] == "flatout.profile-compare/2"
    assert published["ratio"] == pytest.approx(4.1174)
    assert published["parts"][0]["kind"] == "wait-data"
    assert published["parts"][0]["ms"] == pytest.approx(-231.6)
    assert published["gone"][0]["code"] == "DATA001"


# Lines of the host --------------------------------------------------------------------------------


def mended() -> Profiled:
    """The script without its double loop, its other lines moved down."""
    profiled = examples.scripted()
    anatomy, host = profiled.profile.anatomy, profiled.profile.host
    assert host is not None
    parts = tuple(part for part in anatomy.parts if part.kind is not Kind.USER)
    lines = tuple(
        dataclasses.replace(line, where=dataclasses.replace(line.where, line=line.where.line + 7))
        for line in host.lines
        if line.where != examples.MASK
    )
    anatomy = dataclasses.replace(anatomy, parts=parts, step_ms=48.0)
    host = dataclasses.replace(host, lines=lines, step_ms=70.0)
    profile = dataclasses.replace(profiled.profile, anatomy=anatomy, host=host)
    return dataclasses.replace(profiled, profile=profile, findings=())


def test_a_line_that_is_gone_is_named_and_one_that_moved_is_the_same() -> None:
    comparison = compared(examples.scripted(), mended())
    assert comparison.parts[0].name == "your Python"
    assert "line      -32.0 ms: train.py:14 m[i][j] = 1.0 (32.0 ms -> 0.00 ms)" in drawn(comparison)
    (moved,) = [change for change in comparison.lines if "f1_score" in change.name]
    assert moved.before_ms > 0 and moved.after_ms > 0
    assert {Kind.USER, Kind.LIBRARY, Kind.BLOCKED} <= {part.kind for part in comparison.parts}
    assert not any("without lines" in caveat for caveat in comparison.caveats)


def test_an_older_profile_is_compared_with_all_that_is_between_operators_as_one_part() -> None:
    parts = (Part(Kind.PYTHON, 60.0), Part(Kind.MATMUL, 16.0, 12.0), Part(Kind.WAIT_DATA, 4.0))
    older = changed(
        examples.scripted(), profile__anatomy=Anatomy("cpu", 80.0, parts, 6), profile__host=None
    )
    comparison = compared(older, examples.scripted())
    times = {part.kind: (part.before_ms, part.after_ms) for part in comparison.parts}
    assert times[Kind.PYTHON] == pytest.approx((60.0, 60.0))
    assert Kind.USER not in times and Kind.DISPATCH not in times
    assert any("without lines of the host" in caveat for caveat in comparison.caveats)
