"""The parts of one step: they add up to its time, because each instant has one owner."""

from __future__ import annotations

import numpy as np

from flatout.nouns.anatomy import WAITS, Anatomy, Kind, Part
from flatout.profiling.trace import flops, intervals, processor
from flatout.profiling.trace.device import RANKS
from flatout.profiling.trace.recording import Ints
from flatout.profiling.trace.seen import Seen

ADDED_TO = {
    True: (Kind.WAIT_HOST, Kind.WAIT_SYNC, Kind.WAIT_OTHER, Kind.WAIT_DATA),
    False: (Kind.PYTHON,),
}
"""On an accelerator or not: the parts that recording makes longer, the likeliest first."""
KEPT = {True: (), False: (Kind.WAIT_DATA,)}
"""What is no longer for being recorded: where a CPU trains, its wait for a batch."""


def anatomy(seen: Seen, step_ms: float | None = None) -> Anatomy:
    """Divide up the window. `step_ms`: what a step takes when nothing is recorded."""
    times = _times(seen)
    recorded = seen.per_step(seen.window.end - seen.window.begin)
    wanted = recorded if step_ms is None or step_ms <= 0 else step_ms
    launches = _launches(seen)
    times, added = _undisturbed(times, launches, recorded, wanted, seen.on_device)
    operations, moved = _flops(seen), _traffic(seen)
    parts = [
        Part(
            kind,
            ms,
            launches=launches.get(kind, 0.0),
            flops=operations.get(kind),
            bytes=moved.get(kind),
        )
        for kind, ms in times.items()
        if ms > 0
    ]
    return Anatomy(
        device="cuda" if seen.on_device else "cpu",
        step_ms=wanted,
        parts=tuple(sorted(parts, key=lambda part: -part.ms)),
        steps=seen.window.steps,
        recording_ms=added,
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
    times: dict[Kind, float],
    launches: dict[Kind, float],
    recorded: float,
    wanted: float,
    on_device: bool,
) -> tuple[dict[Kind, float], float]:
    """Take off what recording added, so that the parts add up to `wanted`; and how much it was.

    On a CPU each operator costs the recorder the same. What is still too much is no cost of
    recording: these steps were slower, and their parts are scaled.
    """
    excess, found = max(recorded - wanted, 0.0), dict(times)
    left = excess
    for kind in ADDED_TO[on_device]:
        left -= (taken := min(left, found.get(kind, 0.0)))
        found[kind] = found.get(kind, 0.0) - taken
    if not on_device:
        kept = (*KEPT[on_device], *ADDED_TO[on_device])
        counts = {kind: count for kind, count in launches.items() if kind not in kept}
        each = left / (sum(counts.values()) or 1.0)
        for kind, count in counts.items():
            left -= (taken := min(each * count, found.get(kind, 0.0)))
            found[kind] = found.get(kind, 0.0) - taken
    return _scaled(found, wanted, KEPT[on_device]), excess - max(left, 0.0)


def _scaled(times: dict[Kind, float], wanted: float, kept: tuple[Kind, ...]) -> dict[Kind, float]:
    """Scaled so that they add up; `kept` stay as they are, as far as that can be."""
    fixed = sum(times.get(kind, 0.0) for kind in kept)
    others = sum(times.values()) - fixed
    if fixed >= wanted or others <= 0:
        fixed, others, kept = 0.0, sum(times.values()), ()
    ratio = (wanted - fixed) / others if others else 1.0
    return {kind: ms if kind in kept else ms * ratio for kind, ms in times.items()}


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
    return _by_kind(seen, rows, seen.flops[rows])


def _traffic(seen: Seen) -> dict[Kind, float]:
    """Bytes that one step must move at least, by the kind that does it."""
    rows = np.flatnonzero(seen.traffic)
    return _by_kind(seen, rows, seen.traffic[rows])


def _by_kind(seen: Seen, rows: Ints, amounts: Ints) -> dict[Kind, float]:
    """Amounts of operators, of one step."""
    if not len(rows):
        return {}
    on_tensor_cores = np.zeros(len(seen.recording.events), np.bool_)
    fast = seen.work.rank == RANKS[Kind.TENSOR_CORES]
    around = np.unique(seen.work.operator[fast & seen.counted])
    while len(around := around[around >= 0]):
        on_tensor_cores[around] = True
        around = np.unique(seen.host.parent[around])
    found: dict[Kind, float] = {}
    for row, amount in zip(rows.tolist(), amounts.tolist(), strict=True):
        kind = processor.ORDER[seen.rank[row]]
        if seen.flops[row]:
            kind = Kind.TENSOR_CORES if on_tensor_cores[row] else Kind.MATMUL
            if flops.is_attention(seen.recording.names[seen.recording.events.name[row]]):
                kind = Kind.ATTENTION
        found[kind] = found.get(kind, 0.0) + amount / seen.window.steps
    return found
