"""Nothing large stays unexplained."""

from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from flatout.diagnosing.diagnose import diagnose_profile
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind, HostLine, HostTime
from flatout.nouns.place import Place
from flatout.nouns.profile import Gap, Kernel, Profile, Profiled
from flatout.profiling.trace.analysing import analyse
from flatout.profiling.trace.reading import read
from flatout.reporting.profile import words
from profiling.trace.making import REAL, real

CHECK = "time-unexplained"
GRAPH = Gap(
    Kind.UNRECORDED,
    ms=40.0,
    count=2.0,
    doing="CompiledFunctionBackward",
    longest_ms=30.0,
    before="fill_kernel",
    after="Memset (Device)",
    stream=7,
    queued_ms=31.0,
)


def with_gaps(*gaps: Gap, host_ms: float | None = 50.0) -> Profile:
    """The healthy job on a GPU, waiting as these say."""
    kinds = {gap.kind: sum(other.ms for other in gaps if other.kind is gap.kind) for gap in gaps}
    profile = made.profile(kinds)
    anatomy = dataclasses.replace(profile.anatomy, host_ms=host_ms)
    return dataclasses.replace(profile, gaps=gaps, anatomy=anatomy)


def test_work_of_graphs_that_was_not_recorded() -> None:
    found = made.only(CHECK, with_gaps(GRAPH))
    assert (found.code, found.gain) == ("HOST016", None)
    for fact in ("2.0 gaps", "30.0 ms", "stream 7", "between fill_kernel and Memset (Device)",
                 "31.0 ms before the gap", "neither the host"):  # fmt: skip
        assert fact in found.evidence
    assert found.cure.commands == (
        "nsys profile --trace=cuda --cuda-graph-trace=graph python train.py",
    )


def test_an_incomplete_trace() -> None:
    found = made.only(CHECK, with_gaps(GRAPH, host_ms=None))
    assert "incomplete" in found.title and found.cure.commands[0].startswith("flatout profile")


def test_queued_work_that_does_not_start() -> None:
    gap = dataclasses.replace(GRAPH, kind=Kind.WAIT_OTHER)
    found = made.only(CHECK, with_gaps(gap))
    assert "another process" in found.evidence and "nvidia-smi" in found.cure.commands[0]


def test_what_the_recorder_takes_itself() -> None:
    gap = Gap(Kind.WAIT_OTHER, ms=30.0, count=1.0, doing="Activity Buffer Request", after="relu")
    assert "the recorder's own work" in made.only(CHECK, with_gaps(gap)).title


def test_an_idle_device_of_which_the_host_was_not_recorded() -> None:
    gap = Gap(Kind.WAIT_OTHER, ms=30.0, count=1.0, after="relu")
    assert "not recorded" in made.only(CHECK, with_gaps(gap)).title


PAUSE = Gap(Kind.WAIT_HOST, ms=30.0, count=2.0, doing="aten::copy_", longest_ms=20.0, queued_ms=-20)
LINE = HostLine(Place("train.py", 30), HostKind.LIBRARY, 25.0, "sklearn.f1_score", "sklearn")


def test_a_pause_of_the_host_without_a_line() -> None:
    found = made.only(CHECK, with_gaps(PAUSE))
    assert "no line is known" in found.evidence and "aten::copy_" in found.evidence
    known = dataclasses.replace(with_gaps(PAUSE), host=HostTime(20, 130.0, (LINE,)))
    assert made.findings(CHECK, known) == ()
    placed = dataclasses.replace(PAUSE, where=made.FORWARD)
    assert made.findings(CHECK, with_gaps(placed)) == ()


def test_python_between_operators_without_stacks() -> None:
    profile = made.cpu_profile({Kind.PYTHON: 150.0})
    assert "does not tell apart" in made.only(CHECK, profile).evidence
    sampled = dataclasses.replace(profile, host=HostTime(20, 450.0, (LINE,)))
    assert made.findings(CHECK, sampled) == ()


def test_work_that_no_rule_knows() -> None:
    profile = made.profile({Kind.OTHER: 40.0})
    kernels = (Kernel("mystery_kernel", Kind.OTHER, 3.0, 40.0), *profile.kernels)
    found = made.only(CHECK, dataclasses.replace(profile, kernels=kernels))
    assert "mystery_kernel (40.0 ms)" in found.evidence


def test_small_parts_are_not_told() -> None:
    assert made.findings(CHECK, with_gaps(dataclasses.replace(GRAPH, ms=5.0))) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_the_verdict_of_each_recorded_trace_names_what_is_large(name: str) -> None:
    profile = analyse(read([real(name)])[0])
    findings = diagnose_profile(profile)
    profiled = Profiled(profile, findings, checks=1)
    verdict = words.verdict(profiled)
    largest = max(profile.anatomy.parts, key=lambda part: part.ms)
    assert words.kind(largest.kind) in verdict or words.worth_doing(profiled)
    assert "50.0x" not in verdict
    unknown = profile.anatomy.share(Kind.WAIT_OTHER, Kind.UNRECORDED, Kind.OTHER)
    assert ("HOST016" in {finding.code for finding in findings}) or unknown < 0.10
