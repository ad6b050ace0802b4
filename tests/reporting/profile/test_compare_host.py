"""Host time of two profiles: lines explain parts; an older profile has fewer of these."""

from __future__ import annotations

import dataclasses

import pytest

from flatout.diagnosing import pages
from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.finding import Finding
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.place import Place
from flatout.nouns.profile import Profiled
from flatout.reporting.profile import compare, compare_host
from flatout.reporting.profile.compare import ProfileComparison
from machines.healthy import changed
from reporting import profiled_examples as examples


def compared(before: Profiled, after: Profiled) -> ProfileComparison:
    return compare.compare(before, after)


def why(comparison: ProfileComparison, kind: Kind) -> str:
    return "; ".join(next(part.why for part in comparison.parts if part.kind is kind))


def mended(*findings: Finding) -> Profiled:
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
    return dataclasses.replace(profiled, profile=profile, findings=findings)


def test_the_line_that_is_gone_explains_the_part() -> None:
    comparison = compared(examples.scripted(), mended())
    assert comparison.explained[0][0].name == "your Python"
    assert "train.py:14 m[i][j] = 1.0: 32.0 ms -> 0.00 ms" in why(comparison, Kind.USER)


def test_a_line_that_moved_is_the_same_line() -> None:
    comparison = compared(examples.scripted(), mended())
    assert not any("f1_score" in reason for part in comparison.parts for reason in part.why)


def test_a_finding_stands_at_the_part_that_it_is_about() -> None:
    codes = ("HOST009", "HOST010", "HOST012")
    findings = tuple(dataclasses.replace(examples.ITEM, code=code) for code in codes)
    before = dataclasses.replace(examples.scripted(), findings=findings)
    comparison = compared(before, mended())
    assert "HOST009" in why(comparison, Kind.USER)
    assert "HOST010" not in why(comparison, Kind.USER)
    assert "HOST012" not in why(comparison, Kind.USER)


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


def test_two_of_the_same_age_keep_their_parts() -> None:
    comparison = compared(examples.scripted(), mended())
    assert {Kind.USER, Kind.LIBRARY, Kind.BLOCKED} <= {part.kind for part in comparison.parts}
    assert not any("without lines" in caveat for caveat in comparison.caveats)


def test_where_a_gpu_waits_for_the_host_the_hosts_lines_explain_it() -> None:
    naive = examples.naive()
    host = examples.host_time()
    line = HostLine(Place("train.py", 5, "f", "slow()"), HostKind.PYTHON, 200.0)
    slow = dataclasses.replace(host, lines=(line, *host.lines))
    parts = (*naive.profile.anatomy.parts, Part(Kind.WAIT_HOST, 150.0))
    anatomy = dataclasses.replace(naive.profile.anatomy, parts=parts)
    before = changed(naive, profile__host=host)
    after = changed(naive, profile__host=slow, profile__anatomy=anatomy)
    assert "train.py:5 slow(): 0.00 ms -> " in why(compared(before, after), Kind.WAIT_HOST)


def test_findings_that_stand_at_certain_parts_exist() -> None:
    assert set(compare_host.CODES) <= {page.code for page in pages.every()}
