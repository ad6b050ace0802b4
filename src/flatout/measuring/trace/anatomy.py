"""The parts of one step: they add up to its time, because each instant has one owner."""

from __future__ import annotations

import numpy as np

from flatout.measuring.trace import flops, intervals
from flatout.measuring.trace.device import RANKS
from flatout.measuring.trace.seen import Seen
from flatout.nouns.anatomy import WAITS, Anatomy, Kind, Part

ADDED_TO = {
    True: (Kind.WAIT_HOST, Kind.WAIT_SYNC, Kind.WAIT_OTHER, Kind.WAIT_DATA),
    False: (Kind.PYTHON, Kind.OTHER, Kind.WAIT_DATA),
}
"""On an accelerator or not: the parts that recording makes longer, the likeliest first."""


def anatomy(seen: Seen, step_ms: float | None = None) -> Anatomy:
    """Divide up the window. `step_ms`: what a step takes when nothing is recorded."""
    times = _times(seen)
    recorded = seen.per_step(seen.window.end - seen.window.begin)
    wanted = recorded if step_ms is None or step_ms <= 0 else step_ms
    times = _undisturbed(times, recorded, wanted, seen.on_device)
    launches = _launches(seen)
    operations = _flops(seen)
    parts = [
        Part(kind, ms, launches=launches.get(kind, 0.0), flops=operations.get(kind))
        for kind, ms in times.items()
        if ms > 0
    ]
    return Anatomy(
        device="cuda" if seen.on_device else "cpu",
        step_ms=wanted,
        parts=tuple(sorted(parts, key=lambda part: -part.ms)),
        steps=seen.window.steps,
        recording_ms=max(recorded - wanted, 0.0),
        hidden_communication_ms=_hidden(seen, Kind.COMMUNICATION),
        overlapped_copy_ms=_hidden(seen, Kind.COPY),
        flops=sum(operations.values()) or None,
    )


def factors(seen: Seen, found: Anatomy) -> dict[Kind, float]:
    """By how much each kind's time was corrected."""
    return {kind: found.part(kind) / ms if ms else 1.0 for kind, ms in _times(seen).items()}


def _times(seen: Seen) -> dict[Kind, float]:
    """Milliseconds of each kind in one step, as recorded."""
    times = {kind: seen.per_step(seen.held.total(number)) for number, kind in enumerate(seen.order)}
    lasting = seen.gaps.end - seen.gaps.begin
    for number, kind in enumerate(WAITS):
        waited = int(lasting[seen.gaps.cause == number].sum())
        times[kind] = times.get(kind, 0.0) + seen.per_step(waited)
    return times


def _undisturbed(
    times: dict[Kind, float], recorded: float, wanted: float, on_device: bool
) -> dict[Kind, float]:
    """Take off what recording added, so that the parts add up to `wanted`."""
    left, found = recorded - wanted, dict(times)
    for kind in ADDED_TO[on_device]:
        taken = min(max(left, 0.0), found.get(kind, 0.0))
        found[kind] = found.get(kind, 0.0) - taken
        left -= taken
    total = sum(found.values())
    return {kind: ms * wanted / total for kind, ms in found.items()} if total else found


def _launches(seen: Seen) -> dict[Kind, float]:
    """Kernels, or operators that compute, of one step."""
    if seen.on_device:
        ranks = seen.work.rank[seen.counted]
    else:
        rows = seen.host.rows[seen.window.inside(seen.recording.events.begin[seen.host.rows])]
        ranks = seen.rank[rows]
    counts = np.bincount(ranks, minlength=len(seen.order)) / seen.window.steps
    return {kind: float(counts[number]) for number, kind in enumerate(seen.order)}


def _hidden(seen: Seen, kind: Kind) -> float:
    """Time in which this kind was at work while another one held the instant."""
    if not seen.on_device:
        return 0.0
    rows = seen.work.rows[seen.work.rank == RANKS[kind]]
    events, low, high = seen.recording.events, seen.window.begin, seen.window.end
    first, last = intervals.union(
        np.clip(events.begin[rows], low, high), np.clip(events.end[rows], low, high)
    )
    return seen.per_step(int((last - first).sum()) - seen.held.total(RANKS[kind]))


def _flops(seen: Seen) -> dict[Kind, float]:
    """Floating-point operations of one step, by the kind that carries them out."""
    rows = np.flatnonzero(seen.flops)
    on_tensor_cores = np.zeros(len(seen.recording.events), np.bool_)
    fast = seen.work.rank == RANKS[Kind.TENSOR_CORES]
    around = np.unique(seen.work.operator[fast & seen.counted])
    while len(around := around[around >= 0]):
        on_tensor_cores[around] = True
        around = np.unique(seen.host.parent[around])
    found: dict[Kind, float] = {}
    for row in rows.tolist():
        kind = Kind.TENSOR_CORES if on_tensor_cores[row] else Kind.MATMUL
        if flops.is_attention(seen.recording.names[seen.recording.events.name[row]]):
            kind = Kind.ATTENTION
        found[kind] = found.get(kind, 0.0) + float(seen.flops[row]) / seen.window.steps
    return found
