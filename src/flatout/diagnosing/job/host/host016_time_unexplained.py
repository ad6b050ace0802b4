"""A large part of the step has no cause in what was recorded.

## What it sees

A tenth of the step or more in which the device has no recorded work and neither a launch, a waiting
call, the loader nor another rank explains it; work that is missing from the trace; kernels that no
rule knows; on a CPU, in a trace without sampled stacks, time between operators beyond the time to
call them.

## Why it matters

Without a cause there is no cure, and other findings are worth less than they seem: they see only
the rest of the step.

While nothing runs, queued work waits for nothing on its own device: the events of a stream come
from work that has ended. Either the recorder left work out (nodes of CUDA graphs, sampled events),
or something else held the device: another process, a host function in the stream, another device.

## Evidence

How much, in how many gaps. For the longest gap: its stream, the work before and after it, how long
before it that work was launched, and which causes are excluded.

## Cure

The one command that finds out: another recording, or a look at the device's other processes. No
gain is predicted for an unknown cause.

## References

- https://docs.nvidia.com/nsight-systems/UserGuide/index.html#cuda-graph-trace
- https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
- https://docs.nvidia.com/cupti/main/main.html#cuda-graphs
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.host import launch_gaps
from flatout.nouns import units
from flatout.nouns.anatomy import HOST_PARTS, WAITS, Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Gap, Profile

CHECK = Check(code="HOST016", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.10
LEAST_PART = 0.02
"""Share of the step from which a part of it is described."""
CALL_MS = 0.010
"""The most that calling one operator takes, Python included."""
EXPLAINS = 0.5
"""Share of the waiting that the lines of sampled stacks must take to explain it."""
RECORDER = re.compile(
    r"Activity Buffer Request|Buffer Flush|Instrumentation|Resource|UVM Activity Init"
)
"""Events of CUDA's recorder about itself."""
NAME = 60
"""Characters of a kernel's name."""


@dataclass(frozen=True)
class Unexplained:
    """One part of the step without a cause."""

    ms: float
    name: str
    """For the title."""
    known: str
    """What is known about it, and which causes are excluded."""
    cure: Cure


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all time without a cause; the largest part is described first."""
    step_ms = profile.anatomy.step_ms
    parts = [part for describe in PARTS if (part := describe(profile)) is not None]
    parts = [part for part in parts if part.ms >= LEAST_PART * step_ms]
    total_ms = savings.within(profile, sum(part.ms for part in parts))
    if not parts or step_ms <= 0 or total_ms < LEAST_SHARE * step_ms:
        return
    parts.sort(key=lambda part: -part.ms)
    yield Diagnosis(
        title=f"{units.milliseconds(total_ms)} of the step ({units.share(total_ms / step_ms)}) "
        f"without a cause: {parts[0].name}",
        evidence="; ".join(f"{units.milliseconds(part.ms)} {part.known}" for part in parts),
        cure=parts[0].cure,
    )


def _unrecorded(profile: Profile) -> Unexplained | None:
    ms = profile.anatomy.part(Kind.UNRECORDED)
    gaps = _gaps(profile, Kind.UNRECORDED)
    graphs = any(gap.queued_ms is not None and gap.queued_ms > 0 for gap in gaps)
    has_host = profile.anatomy.host_ms is not None
    if graphs and has_host:
        known = (
            f"in or before CUDA graphs{_described(gaps)}; neither the host, which had launched "
            "the graph, nor the loader: parts of the graph are not in the trace, or the driver "
            "prepares it"
        )
        cure = Cure(
            "Record each graph as one piece: the recorder then leaves nothing of it out.",
            (f"nsys profile --trace=cuda --cuda-graph-trace=graph {_program(profile)}",),
        )
        return Unexplained(ms, "work in CUDA graphs that was not recorded", known, cure)
    known = (
        f"in which the trace lacks most launches or their kernels{_described(gaps)}: it was "
        "sampled, or the recorder lost events; these gaps say nothing of the host"
    )
    cure = Cure("Record the program completely, a few steps at a time.", (_recorded(profile),))
    return Unexplained(ms, "the trace is incomplete", known, cure)


def _queued(profile: Profile) -> Unexplained | None:
    """The time in which nothing ran though work was queued, or the host was not recorded."""
    ms, gaps = profile.anatomy.part(Kind.WAIT_OTHER), _gaps(profile, Kind.WAIT_OTHER)
    if gaps and RECORDER.fullmatch(max(gaps, key=lambda gap: gap.ms).doing):
        known = f"while the recorder itself holds things up{_described(gaps)}: no part of training"
        cure = Cure("Record fewer events at a time.", (_recorded(profile),))
        return Unexplained(ms, "the recorder's own work", known, cure)
    if not any(gap.queued_ms is not None for gap in gaps):
        known = f"while the device is idle{_described(gaps)}; the trace has nothing of the host"
        cure = Cure("Record the host as well.", (_recorded(profile),))
        return Unexplained(ms, "the device is idle, and the host was not recorded", known, cure)
    known = (
        f"while work was queued{_described(gaps)}; neither the host, the loader nor another stream "
        "of this device: another process on it, a host function in the stream, or another device"
    )
    cure = Cure(
        "See whether another process uses the device while it trains.",
        ("nvidia-smi pmon -c 10",),
    )
    return Unexplained(ms, "the device is idle though work is queued", known, cure)


def _launches(profile: Profile) -> Unexplained | None:
    """The time in which the host launched nothing and no line, call or collection says why."""
    if not savings.accelerated(profile):
        return None
    # A window without steps has no finding about launches, so all gaps are described here.
    gaps = launch_gaps.pauses(profile) if profile.trace_steps else _gaps(profile, Kind.WAIT_HOST)
    gaps = [gap for gap in gaps if gap.where is None]
    ms = sum(gap.ms for gap in gaps) - launch_gaps.paused_ms(profile) - _seen_ms(profile)
    if not gaps:
        return None
    known = f"in which the host launches nothing{_described(gaps)}; no line is known"
    if not profile.trace_steps:
        known += ", and a window without steps holds the program's start as well"
    cure = Cure("Record the script: flatout samples the host's lines.", (_recorded(profile),))
    return Unexplained(ms, "the host launches nothing, in no known line", known, cure)


def _seen_ms(profile: Profile) -> float:
    """Milliseconds of the pauses that calls and lines seen beside the trace explain."""
    calls = profile.seen.calls if profile.seen is not None else ()
    in_calls = sum(1000 * call.s for call in calls if call.where is not None)
    if profile.host is None:
        return in_calls
    kinds = (HostKind.PYTHON, HostKind.LIBRARY, HostKind.WAITING)
    in_lines = profile.host.total_ms(*kinds)
    explained = in_lines >= EXPLAINS * profile.anatomy.part(Kind.WAIT_HOST)
    return profile.anatomy.step_ms if explained else max(in_calls, in_lines)


def _between_operators(profile: Profile) -> Unexplained | None:
    """The time between operators on a CPU, if no stacks were sampled."""
    anatomy = profile.anatomy
    if savings.accelerated(profile) or profile.host is not None:
        return None
    computing = [part for part in anatomy.parts if part.kind not in (*HOST_PARTS, *WAITS)]
    calls = sum(part.launches for part in computing)
    ms = anatomy.part(Kind.PYTHON) - CALL_MS * calls - launch_gaps.paused_ms(profile)
    known = (
        f"between operators, beyond the {units.milliseconds(CALL_MS * calls)} that calling "
        f"{calls:,.0f} of them takes at most: your Python, other packages, files or locks, which a "
        "trace without stacks does not tell apart"
    )
    cure = Cure("Record the script: flatout samples the host's lines.", (_recorded(profile),))
    return Unexplained(ms, "no stacks were sampled between operators", known, cure)


def _unknown_work(profile: Profile) -> Unexplained | None:
    ms = profile.anatomy.part(Kind.OTHER)
    kernels = [(item.ms, item.name) for item in profile.kernels if item.kind is Kind.OTHER]
    table = kernels or [
        (item.host_ms + item.device_ms, item.name)
        for item in profile.operators
        if item.kind is Kind.OTHER
    ]
    longest = sorted(table, reverse=True)[:3]
    names = ", ".join(f"{_short(name)} ({units.milliseconds(part)})" for part, name in longest)
    known = f"in work that no rule knows{': ' if names else ''}{names}: busy, not waiting"
    cure = Cure(
        "The report's tables name the operators and lines that these belong to; with stacks and "
        "shapes where flatout records the script.",
        (_recorded(profile),),
    )
    return Unexplained(ms, "kernels or operators that no rule knows", known, cure)


PARTS: tuple[Callable[[Profile], Unexplained | None], ...] = (
    _unrecorded,
    _queued,
    _launches,
    _between_operators,
    _unknown_work,
)


def _gaps(profile: Profile, kind: Kind) -> list[Gap]:
    return [gap for gap in profile.gaps if gap.kind is kind]


def _described(gaps: list[Gap]) -> str:
    """Like " (3.0 gaps; the longest of 64 ms on stream 7, between A and B, launched 65 ms ...)"."""
    if not gaps:
        return ""
    longest = max(gaps, key=lambda gap: gap.longest_ms or gap.ms / max(gap.count, 1.0))
    length = longest.longest_ms or longest.ms / max(longest.count, 1.0)
    words = [f"{sum(gap.count for gap in gaps):,.1f} gaps a step; the longest of "
             f"{units.milliseconds(length)}"]  # fmt: skip
    if longest.stream is not None:
        words.append(f"on stream {longest.stream}")
    if longest.before and longest.after:
        words.append(f"between {_short(longest.before)} and {_short(longest.after)}")
    elif longest.after:
        words.append(f"before {_short(longest.after)}")
    if longest.doing and not longest.doing.startswith("ProfilerStep"):
        words.append(f"for {_short(longest.doing)},")
    queued = longest.queued_ms
    if queued is not None:
        launched = f"launched {units.milliseconds(abs(queued))} "
        words.append(launched + ("before the gap" if queued > 0 else "after its begin"))
    return f" ({' '.join(words)})"


def _short(name: str) -> str:
    text = name.removeprefix("void ")
    return text if len(text) <= NAME else f"{text[: NAME - 3]}..."


def _program(profile: Profile) -> str:
    return shlex.join(profile.command) if profile.command else "python train.py"


def _recorded(profile: Profile) -> str:
    return f"flatout profile {shlex.join(profile.command) if profile.command else 'train.py'}"
