"""The parts of one step: they sum to its time, because each instant has one owner."""

from __future__ import annotations

import numpy as np

from flatout.nouns.anatomy import WAITS, Anatomy, Kind, Part
from flatout.profiling.trace import flops, idle, intervals, operators, processor
from flatout.profiling.trace.attribution import Attribution
from flatout.profiling.trace.device import RANKS
from flatout.profiling.trace.recording import Category, Ints

ADDED_TO = {
    True: (Kind.WAIT_HOST, Kind.WAIT_SYNC, Kind.WAIT_OTHER, Kind.WAIT_DATA),
    False: (Kind.PYTHON,),
}
"""The parts that recording prolongs, the likeliest first, by whether an accelerator trains."""
BLOCKED_NS = 100_000
"""A launch that takes longer waits: the device's queue is full."""
SHORT, SHARE = 0.1, 0.5
"""Recording an operator costs at most half the time of the shortest tenth."""
UNAFFECTED = {True: (), False: (Kind.WAIT_DATA,)}
"""The parts that recording does not prolong: if a CPU trains, its wait for a batch."""


def anatomy(attribution: Attribution, step_ms: float | None = None) -> Anatomy:
    """Divide up the window. `step_ms`: duration of a step without recording."""
    times = _times(attribution)
    recorded_ms = attribution.per_step(attribution.window.end - attribution.window.begin)
    target_ms = recorded_ms if step_ms is None or step_ms <= 0 else step_ms
    if attribution.on_device:
        ranks = attribution.work.rank[attribution.counted]
    else:
        ranks = attribution.rank[_operators(attribution)]
    counts = np.bincount(ranks, minlength=len(attribution.order)) / attribution.window.steps
    launches = {kind: float(counts[number]) for number, kind in enumerate(attribution.order)}
    times, overhead_ms = _without_overhead(attribution, times, launches, recorded_ms, target_ms)
    operations = _by_kind(attribution, attribution.flops)
    traffic = _by_kind(attribution, attribution.traffic)
    parts = [
        Part(
            kind,
            ms,
            launches=launches.get(kind, 0.0),
            flops=operations.get(kind),
            bytes=traffic.get(kind),
        )
        for kind, ms in times.items()
        if ms > 0
    ]
    return Anatomy(
        device="cuda" if attribution.on_device else "cpu",
        step_ms=target_ms,
        parts=tuple(sorted(parts, key=lambda part: -part.ms)),
        steps=attribution.window.steps,
        recording_ms=overhead_ms,
        host_ms=_host_ms(attribution, target_ms, overhead_ms),
        hidden_communication_ms=_hidden(attribution, Kind.COMMUNICATION),
        overlapped_copy_ms=_hidden(attribution, Kind.COPY),
        flops=sum(operations.values()) or None,
    )


def _host_ms(attribution: Attribution, step_ms: float, overhead_ms: float) -> float | None:
    """The host's own time for a step, without the calls in which it waits.

    A launch waits if the device's queue is full. None if the trace marks no steps, or has no calls
    that would show a wait.
    """
    recording, host = attribution.recording, attribution.host
    calls = recording.rows(Category.RUNTIME)
    if not attribution.on_device or not attribution.window.marks or not len(calls):
        return None
    if idle.launches_missing(recording):
        return None
    events, (low, high) = recording.events, attribution.window.host
    is_launch = recording.named(operators.LAUNCHES.search)[events.name[calls]]
    is_long = events.end[calls] - events.begin[calls] >= BLOCKED_NS
    rows = np.union1d(calls[is_launch & is_long], attribution.syncs.rows)
    training = processor.training_threads(recording, host, attribution.main)
    rows = rows[np.isin(events.thread[rows], training)]
    first, last = np.array([low]), np.array([high])
    waits_ns = int(intervals.covered(events.begin[rows], events.end[rows], first, last)[0])
    return min(step_ms, max(0.0, attribution.per_step(high - low - waits_ns) - overhead_ms))


def factors(attribution: Attribution, step_anatomy: Anatomy) -> dict[Kind, float]:
    """The factor by which each kind's time was corrected."""
    return {
        kind: step_anatomy.part(kind) / ms if ms else 1.0
        for kind, ms in _times(attribution).items()
    }


def _times(attribution: Attribution) -> dict[Kind, float]:
    """Milliseconds of each kind in one step, as recorded."""
    times = {
        kind: attribution.per_step(attribution.held.total(number))
        for number, kind in enumerate(attribution.order)
    }
    durations = attribution.gaps.end - attribution.gaps.begin
    for number, kind in enumerate(WAITS):
        wait_ns = int(durations[attribution.gaps.cause == number].sum())
        times[kind] = times.get(kind, 0.0) + attribution.per_step(wait_ns)
    return times


def _without_overhead(
    attribution: Attribution,
    times: dict[Kind, float],
    launches: dict[Kind, float],
    recorded_ms: float,
    target_ms: float,
) -> tuple[dict[Kind, float], float]:
    """Times that sum to `target_ms`, without the overhead of recording; and that overhead.

    On a CPU the recorder's cost is the same for each operator, and at most a part of the time of
    the shortest. Any remaining excess is not overhead: these steps were slower, and their parts
    are scaled.
    """
    on_device = attribution.on_device
    excess_ms, corrected = max(recorded_ms - target_ms, 0.0), dict(times)
    rest_ms = excess_ms
    for kind in ADDED_TO[on_device]:
        rest_ms -= (deducted_ms := min(rest_ms, corrected.get(kind, 0.0)))
        corrected[kind] = corrected.get(kind, 0.0) - deducted_ms
    if not on_device:
        excluded = (*UNAFFECTED[on_device], *ADDED_TO[on_device])
        counts = {kind: count for kind, count in launches.items() if kind not in excluded}
        rows, events = _operators(attribution), attribution.recording.events
        durations = events.end[rows] - events.begin[rows]  # they include the recorder's cost
        most_ms = SHARE * float(np.quantile(durations, SHORT)) / 1e6 if len(durations) else 0.0
        per_launch_ms = min(rest_ms / (sum(counts.values()) or 1.0), most_ms)
        for kind, count in counts.items():
            rest_ms -= (deducted_ms := min(per_launch_ms * count, corrected.get(kind, 0.0)))
            corrected[kind] = corrected.get(kind, 0.0) - deducted_ms
    # Times scaled to sum to `target_ms`; `fixed_kinds` stay unchanged where possible.
    fixed_kinds = UNAFFECTED[on_device]
    fixed_ms = sum(corrected.get(kind, 0.0) for kind in fixed_kinds)
    other_ms = sum(corrected.values()) - fixed_ms
    if fixed_ms >= target_ms or other_ms <= 0:
        fixed_ms, other_ms, fixed_kinds = 0.0, sum(corrected.values()), ()
    ratio = (target_ms - fixed_ms) / other_ms if other_ms else 1.0
    return {
        kind: ms if kind in fixed_kinds else ms * ratio for kind, ms in corrected.items()
    }, excess_ms - max(rest_ms, 0.0)


def _operators(attribution: Attribution) -> Ints:
    """Rows of the operators that compute, in the window."""
    rows = attribution.host.rows
    return rows[attribution.window.inside(attribution.recording.events.begin[rows])]


def _hidden(attribution: Attribution, kind: Kind) -> float:
    """Time in which this kind was active while another kind owned the instant."""
    if not attribution.on_device:
        return 0.0
    rows = attribution.work.rows[attribution.work.rank == RANKS[kind]]
    events, low, high = (
        attribution.recording.events,
        attribution.window.begin,
        attribution.window.end,
    )
    first, last = intervals.union(
        np.clip(events.begin[rows], low, high), np.clip(events.end[rows], low, high)
    )
    return attribution.per_step(int((last - first).sum()) - attribution.held.total(RANKS[kind]))


def _by_kind(attribution: Attribution, amounts: Ints) -> dict[Kind, float]:
    """Operators' amounts per step (operations, or the least bytes moved), by kind."""
    rows = np.flatnonzero(amounts)
    if not len(rows):
        return {}
    on_tensor_cores = np.zeros(len(attribution.recording.events), np.bool_)
    tensor_core_work = attribution.work.rank == RANKS[Kind.TENSOR_CORES]
    parents = np.unique(attribution.work.operator[tensor_core_work & attribution.counted])
    while len(parents := parents[parents >= 0]):
        on_tensor_cores[parents] = True
        parents = np.unique(attribution.host.parent[parents])
    by_kind: dict[Kind, float] = {}
    for row, amount in zip(rows.tolist(), amounts[rows].tolist(), strict=True):
        kind = processor.ORDER[attribution.rank[row]]
        if attribution.flops[row]:
            kind = Kind.TENSOR_CORES if on_tensor_cores[row] else Kind.MATMUL
            if flops.is_attention(
                attribution.recording.names[attribution.recording.events.name[row]]
            ):
                kind = Kind.ATTENTION
        by_kind[kind] = by_kind.get(kind, 0.0) + amount / attribution.window.steps
    return by_kind
