"""The drawings of a recording: the middle step as a timeline, and memory over time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.profile import HOST_LANE, IDLE_LANE, MemoryPoint, Span
from flatout.profiling.trace import device, operators, processor
from flatout.profiling.trace.attribution import Attribution
from flatout.profiling.trace.intervals import NOBODY
from flatout.profiling.trace.recording import Category, Flags, Ints

MOST_SPANS = 4000
MOST_POINTS = 2000


def timeline(attribution: Attribution) -> tuple[Span, ...]:
    """Spans of the middle step, in order of begin; the shortest are left out."""
    steps, marks = attribution.window.steps, attribution.window.marks
    if marks and not attribution.on_device:
        low, high = marks[len(marks) // 2]
    else:  # the device may lag, so an accelerator's middle step is its share of the window
        length = (attribution.window.end - attribution.window.begin) / steps
        low = attribution.window.begin + round(length * (steps // 2))
        high = low + round(length)
    spans = [*_device(attribution, low, high), *_idle(attribution, low, high)]
    spans += (
        _host(attribution, low, high)
        if attribution.on_device
        else _processor(attribution, low, high)
    )
    spans.sort(key=lambda span: -span.ms)
    return tuple(sorted(spans[:MOST_SPANS], key=lambda span: span.begin_ms))


def _spans(
    lane: str,
    names: list[str],
    kinds: list[Kind | None],
    begin: Ints,
    end: Ints,
    low: int,
    stream: int | None = None,
) -> list[Span]:
    return [
        Span(lane, name, kind, (first - low) / 1e6, (last - first) / 1e6, stream)
        for name, kind, first, last in zip(names, kinds, begin.tolist(), end.tolist(), strict=True)
    ]


def _device(attribution: Attribution, low: int, high: int) -> Iterator[Span]:
    events, work = attribution.recording.events, attribution.work
    inside = (events.end[work.rows] > low) & (events.begin[work.rows] < high)
    rows, ranks = work.rows[inside], work.rank[inside]
    streams = device.streams(attribution.recording, rows)
    for stream in np.unique(streams).tolist():
        stream_rows = rows[streams == stream]
        names = [attribution.recording.names[name] for name in events.name[stream_rows].tolist()]
        kinds: list[Kind | None] = [device.ORDER[rank] for rank in ranks[streams == stream]]
        begin, end = (
            np.clip(events.begin[stream_rows], low, high),
            np.clip(events.end[stream_rows], low, high),
        )
        yield from _spans(f"stream {stream}", names, kinds, begin, end, low, stream)


def _idle(attribution: Attribution, low: int, high: int) -> Iterator[Span]:
    gaps = attribution.gaps
    inside = (gaps.end > low) & (gaps.begin < high)
    doing = gaps.doing[inside]
    names = [
        attribution.recording.names[attribution.recording.events.name[row]] if row >= 0 else ""
        for row in doing.tolist()
    ]
    kinds: list[Kind | None] = [WAITS[cause] for cause in gaps.cause[inside]]
    begin, end = np.clip(gaps.begin[inside], low, high), np.clip(gaps.end[inside], low, high)
    yield from _spans(IDLE_LANE, names, kinds, begin, end, low)


def _host(attribution: Attribution, low: int, high: int) -> list[Span]:
    """The outermost operators of the main thread, with loader and optimizer."""
    if attribution.main not in attribution.host.nests:
        return []
    rows, nested = attribution.host.nests[attribution.main]
    events = attribution.recording.events
    by_name = attribution.recording.named(
        lambda name: bool(
            operators.LOADER.search(name)
            or operators.OPTIMIZER_STEP.search(name)
            or operators.COLLECTIVE.match(name)
        )
    )
    category = events.category[rows]
    visible: Flags = (category == Category.OPERATOR) | (category == Category.RUNTIME)
    visible |= (category == Category.ANNOTATION) & by_name[events.name[rows]]
    inner = nested.spread(visible)
    outermost = visible & ~((nested.parent >= 0) & inner[nested.parent])
    rows = rows[outermost]
    rows = rows[(events.end[rows] > low) & (events.begin[rows] < high)]
    names = [attribution.recording.names[name] for name in events.name[rows].tolist()]
    ordered = (processor.ORDER[rank] for rank in attribution.rank[rows].tolist())
    kinds: list[Kind | None] = [None if kind is Kind.PYTHON else kind for kind in ordered]
    begin, end = np.clip(events.begin[rows], low, high), np.clip(events.end[rows], low, high)
    return _spans(HOST_LANE, names, kinds, begin, end, low)


def _processor(attribution: Attribution, low: int, high: int) -> list[Span]:
    """What the main thread itself was doing, instant by instant."""
    if attribution.main not in attribution.host.nests:
        return []
    segments = attribution.host.working(attribution.main)
    inside = (segments.end > low) & (segments.begin < high) & (segments.owner != NOBODY)
    begin, end = (
        np.clip(segments.begin[inside], low, high),
        np.clip(segments.end[inside], low, high),
    )
    owner = segments.owner[inside]
    names = [
        attribution.recording.names[name]
        for name in attribution.recording.events.name[owner].tolist()
    ]
    kinds: list[Kind | None] = [processor.ORDER[rank] for rank in attribution.rank[owner].tolist()]
    return _spans(HOST_LANE, names, kinds, begin, end, low)


def memory(attribution: Attribution) -> tuple[MemoryPoint, ...]:
    """Memory in use, of the accelerator if one trains, else of the host."""
    samples = attribution.recording.memory
    if not len(samples.at):
        samples = attribution.source.recording.memory
    on_device = samples.accelerator == attribution.on_device
    at, total = samples.at[on_device], samples.total[on_device]
    if not len(at):
        return ()
    # The maximum of each stretch: the peaks are what matters.
    cuts = np.linspace(0, len(at), min(len(at), MOST_POINTS) + 1).astype(np.int64)[:-1]
    peaks = np.maximum.reduceat(total, cuts)
    return tuple(
        MemoryPoint(float(when) / 1e6, int(peak))
        for when, peak in zip((at[cuts] - at[0]).tolist(), peaks.tolist(), strict=True)
    )
