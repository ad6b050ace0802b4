"""What is drawn of a recording: the middle step as a timeline, memory over time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.profile import MemoryPoint, Span
from flatout.profiling.trace import device, operators, processor
from flatout.profiling.trace.intervals import NOBODY
from flatout.profiling.trace.recording import Category, Flags, Ints
from flatout.profiling.trace.seen import Seen

MOST_SPANS = 4000
MOST_POINTS = 2000


def timeline(seen: Seen) -> tuple[Span, ...]:
    """The middle step, in order of begin; the shortest left out."""
    low, high = _middle(seen)
    spans = [*_device(seen, low, high), *_idle(seen, low, high)]
    spans += _host(seen, low, high) if seen.on_device else _processor(seen, low, high)
    spans.sort(key=lambda span: -span.ms)
    return tuple(sorted(spans[:MOST_SPANS], key=lambda span: span.begin_ms))


def _middle(seen: Seen) -> tuple[int, int]:
    """The middle step; on an accelerator its share of the window, which the device may follow."""
    steps, marks = seen.window.steps, seen.window.marks
    if marks and not seen.on_device:
        return marks[len(marks) // 2]
    length = (seen.window.end - seen.window.begin) / steps
    begin = seen.window.begin + round(length * (steps // 2))
    return begin, begin + round(length)


def _spans(
    lane: str, names: list[str], kinds: list[Kind | None], begin: Ints, end: Ints, low: int
) -> list[Span]:
    return [
        Span(lane, name, kind, (first - low) / 1e6, (last - first) / 1e6)
        for name, kind, first, last in zip(names, kinds, begin.tolist(), end.tolist(), strict=True)
    ]


def _device(seen: Seen, low: int, high: int) -> Iterator[Span]:
    events, work = seen.recording.events, seen.work
    inside = (events.end[work.rows] > low) & (events.begin[work.rows] < high)
    rows, ranks = work.rows[inside], work.rank[inside]
    streams = device.streams(seen.recording, rows)
    for stream in np.unique(streams).tolist():
        mine = rows[streams == stream]
        names = [seen.recording.names[name] for name in events.name[mine].tolist()]
        kinds: list[Kind | None] = [device.ORDER[rank] for rank in ranks[streams == stream]]
        begin, end = np.clip(events.begin[mine], low, high), np.clip(events.end[mine], low, high)
        yield from _spans(f"stream {stream}", names, kinds, begin, end, low)


def _idle(seen: Seen, low: int, high: int) -> Iterator[Span]:
    gaps = seen.gaps
    inside = (gaps.end > low) & (gaps.begin < high)
    doing = gaps.doing[inside]
    names = [
        seen.recording.names[seen.recording.events.name[row]] if row >= 0 else ""
        for row in doing.tolist()
    ]
    kinds: list[Kind | None] = [WAITS[cause] for cause in gaps.cause[inside]]
    begin, end = np.clip(gaps.begin[inside], low, high), np.clip(gaps.end[inside], low, high)
    yield from _spans("idle", names, kinds, begin, end, low)


def _host(seen: Seen, low: int, high: int) -> list[Span]:
    """The outermost operators of the thread that takes the steps, loader and optimizer."""
    if seen.main not in seen.host.nests:
        return []
    rows, nested = seen.host.nests[seen.main]
    shown = _shown(seen, rows)
    inner = nested.spread(shown)
    outermost = shown & ~((nested.parent >= 0) & inner[nested.parent])
    events = seen.recording.events
    rows = rows[outermost]
    rows = rows[(events.end[rows] > low) & (events.begin[rows] < high)]
    names = [seen.recording.names[name] for name in events.name[rows].tolist()]
    kinds = [_kind(rank) for rank in seen.rank[rows].tolist()]
    begin, end = np.clip(events.begin[rows], low, high), np.clip(events.end[rows], low, high)
    return _spans("host", names, kinds, begin, end, low)


def _shown(seen: Seen, rows: Ints) -> Flags:
    events = seen.recording.events
    whole = seen.recording.named(
        lambda name: bool(
            operators.LOADER.search(name)
            or operators.OPTIMIZER_STEP.search(name)
            or operators.COLLECTIVE.match(name)
        )
    )
    category = events.category[rows]
    found: Flags = (category == Category.OPERATOR) | (category == Category.RUNTIME)
    found |= (category == Category.ANNOTATION) & whole[events.name[rows]]
    return found


def _kind(rank: int) -> Kind | None:
    kind = processor.ORDER[rank]
    return None if kind is Kind.PYTHON else kind


def _processor(seen: Seen, low: int, high: int) -> list[Span]:
    """What the training thread itself was at, instant by instant."""
    if seen.main not in seen.host.nests:
        return []
    found = seen.host.working(seen.main)
    inside = (found.end > low) & (found.begin < high) & (found.owner != NOBODY)
    begin, end = np.clip(found.begin[inside], low, high), np.clip(found.end[inside], low, high)
    owner = found.owner[inside]
    names = [seen.recording.names[name] for name in seen.recording.events.name[owner].tolist()]
    kinds: list[Kind | None] = [processor.ORDER[rank] for rank in seen.rank[owner].tolist()]
    return _spans("host", names, kinds, begin, end, low)


def memory(seen: Seen) -> tuple[MemoryPoint, ...]:
    """Memory in use: of the accelerator where one trains, else of the host."""
    seen_memory = seen.recording.memory
    if not len(seen_memory.at):
        seen_memory = seen.source.recording.memory
    mine = seen_memory.accelerator == seen.on_device
    at, total = seen_memory.at[mine], seen_memory.total[mine]
    if not len(at):
        return ()
    # The largest of each stretch: peaks are what memory is about.
    cuts = np.linspace(0, len(at), min(len(at), MOST_POINTS) + 1).astype(np.int64)[:-1]
    peaks = np.maximum.reduceat(total, cuts)
    return tuple(
        MemoryPoint(float(when) / 1e6, int(peak))
        for when, peak in zip((at[cuts] - at[0]).tolist(), peaks.tolist(), strict=True)
    )
