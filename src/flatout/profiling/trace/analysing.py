"""From a recording to a Profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Profile, RankSeen
from flatout.profiling.trace import device, drawing, tables
from flatout.profiling.trace.anatomy import anatomy, factors
from flatout.profiling.trace.recording import Recording
from flatout.profiling.trace.seen import Seen, look


def analyse(
    recording: Recording,
    detail: Recording | None = None,
    *,
    step_ms: float | None = None,
    roots: Sequence[Path] = (),
) -> Profile:
    """Where the time of one step went, and what was seen on the way.

    `detail`: the trace with stacks and shapes; its lines and shapes are given to the same
    operators of the first. `step_ms`: a step while nothing is recorded: what recording added is
    taken off. `roots`: folders of the user's own code, the first the one the program was
    started in; without them lines are those of functions.
    """
    seen = look(recording, detail, roots)
    found = anatomy(seen, step_ms)
    factor = factors(seen, found)
    name, capability = _device(seen)
    return Profile(
        command=(),
        anatomy=found,
        operators=tables.operator_table(seen, factor),
        kernels=tables.kernel_table(seen),
        gaps=tables.gap_table(seen, factor),
        syncs=tables.sync_table(seen),
        copies=tables.copy_table(seen),
        collectives=tables.collective_table(seen),
        timeline=drawing.timeline(seen),
        memory=drawing.memory(seen),
        device_name=name,
        capability=capability,
        trace=recording.path,
        trace_steps=bool(seen.window.marks),
    )


def ranks(recordings: Sequence[Recording]) -> tuple[RankSeen, ...]:
    """All ranks in short; empty for one."""
    if len(recordings) < 2:
        return ()
    ordered = sorted(recordings, key=lambda one: one.rank)
    return tuple(_rank(look(recording)) for recording in ordered)


def _rank(seen: Seen) -> RankSeen:
    """How long this rank was busy, and with what; overlaps count for both."""
    found = anatomy(seen)
    communication = found.part(Kind.COMMUNICATION) + found.hidden_communication_ms
    compute = found.busy_ms - found.part(Kind.COPY, Kind.COMMUNICATION, Kind.PYTHON)
    return RankSeen(
        rank=seen.recording.rank,
        step_ms=found.step_ms,
        busy_ms=found.busy_ms,
        communication_ms=communication,
        compute_ms=compute,
    )


def _device(seen: Seen) -> tuple[str | None, tuple[int, int] | None]:
    """Name and compute capability of the device that trained, as the trace tells them."""
    properties = seen.recording.metadata.get("deviceProperties")
    if not seen.on_device or not isinstance(properties, list):
        return None, None
    number = int(device.numbers(seen.recording)[seen.work.rows[0]])
    mine: dict[str, Any] = next(
        (one for one in properties if isinstance(one, dict) and one.get("id") == number), {}
    )
    major, minor = mine.get("computeMajor"), mine.get("computeMinor")
    known = isinstance(major, int) and isinstance(minor, int)
    name = mine.get("name")
    return name if isinstance(name, str) else None, (major, minor) if known else None  # type: ignore[return-value]
