"""Two profiles side by side: what changed, by how much, and what explains it."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from flatout.nouns.anatomy import Kind
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


def test_the_parts_explain_all_of_the_difference(tuned: ProfileComparison) -> None:
    assert tuned.before_ms == pytest.approx(411.74) and tuned.after_ms == pytest.approx(100.0)
    assert sum(change.ms for change in tuned.parts) == pytest.approx(100.0 - 411.74)
    assert tuned.parts[0].kind is Kind.WAIT_DATA
    assert tuned.ratio == pytest.approx(4.1174)


def test_what_explains_most_is_told_first(tuned: ProfileComparison) -> None:
    (first, share), (second, _) = tuned.explained
    assert first.name == "waiting for data" and second.name == "waiting after a sync"
    assert share == pytest.approx(231.6 / 311.74)


def test_reasons_stand_at_the_part_that_they_changed(tuned: ProfileComparison) -> None:
    why = {change.kind: " ".join(change.why) for change in tuned.parts}
    assert "gone: DATA001 at train.py:80" in why[Kind.WAIT_DATA]
    assert "gone: SYNC001 at train.py:88" in why[Kind.WAIT_SYNC]
    assert "vanished: cudnn::ops::nchwToNhwcKernel" in why[Kind.CONVERSION]
    assert "DATA001" not in why[Kind.TENSOR_CORES]


def test_findings_gone_new_and_stayed() -> None:
    before = dataclasses.replace(examples.naive(), findings=(examples.NO_WORKERS, examples.KEPT))
    after = dataclasses.replace(examples.healthy(), findings=(examples.KEPT, examples.LAYOUT))
    comparison = compared(before, after)
    assert [finding.code for finding in comparison.gone] == ["DATA001"]
    assert [finding.code for finding in comparison.new] == ["KERN014"]
    assert [finding.code for finding in comparison.stayed] == ["LOOP020"]


def test_kernels_that_appeared_vanished_and_changed() -> None:
    base = examples.healthy()
    kernels = base.profile.kernels
    half = dataclasses.replace(kernels[0], ms=kernels[0].ms / 2, calls=80.0)
    flash = Kernel("flash_fwd_kernel", Kind.ATTENTION, 12.0, 6.0)
    other = changed(base, profile__kernels=(half, *kernels[1:-1], flash))
    comparison = compared(base, other)
    (slower,) = comparison.kernels
    assert slower.name == half.name and slower.ms == pytest.approx(-half.ms)
    assert (slower.calls_before, slower.calls_after) == (160.0, 80.0)
    assert [change.name for change in comparison.appeared] == ["flash_fwd_kernel"]
    assert [change.name for change in comparison.vanished] == [kernels[-1].name]


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
    assert comparison.ratio == 1.0 and comparison.explained == ()
    assert comparison.gone == comparison.new == comparison.settings == comparison.caveats[:0] == ()
    assert not any(change.ms or change.why for change in comparison.parts)


def test_the_screen(tuned: ProfileComparison) -> None:
    text = drawn(tuned)
    assert text.isascii()
    assert all(len(line) <= 80 for line in text.splitlines())
    lines = text.splitlines()
    assert lines[0] == "verdict   412 ms -> 100 ms per step, 4.12x as fast per sample"
    assert lines[1] == "profiles  naive.json -> tuned.json"
    assert "anatomy   waiting for data              232 ms   0.40 ms   -232 ms  ####" in text
    assert "          step                          412 ms    100 ms   -312 ms\n" in text
    assert "why       of the difference: waiting for data 74%, waiting after a sync 12%\n" in text
    assert "gone      DATA001 train.py:80: the loader has no worker" in text


def test_foreign_text_cannot_reach_the_terminal() -> None:
    text = drawn(compared(examples.hostile(), examples.naive()))
    assert "\x1b" not in text and "\x07" not in text


def test_the_document(tuned: ProfileComparison) -> None:
    published = compare.document(tuned)
    assert json.loads(json.dumps(published, allow_nan=False)) == published
    assert published["schema"] == "flatout.profile-compare/1"
    assert published["ratio"] == pytest.approx(4.1174)
    assert published["parts"][0]["kind"] == "wait-data"
    assert published["parts"][0]["ms"] == pytest.approx(-231.6)
    assert published["explained"][0]["part"] == "wait-data"
    assert published["gone"][0]["code"] == "DATA001"
