"""The drawings of a profile's page as plain JSON: timeline and memory over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.profile import HOST_LANE, IDLE_LANE, MemoryPoint, Profile, Span
from flatout.reporting import plain
from flatout.reporting.profile import words

ROWS = 12
"""The most rows of nested events in a lane; deeper events share the last row."""
DRAWN_POINTS = 1_200
"""The most points of a curve over time: more than a screen has columns."""
STACKED = ("parameters", "optimizer", "activations and gradients")
"""Categories of memory from the bottom up: the longest-lived first."""

Json = dict[str, Any]


def timeline(profile: Profile) -> Json | None:
    """Spans by lane: [row, name, kind, begin, ms] each, names and kinds by number."""
    if not profile.timeline:
        return None
    names: dict[str, int] = {}
    used = {str(span.kind or "") for span in profile.timeline}
    kinds = {kind: number for number, kind in enumerate(k for k in ("", *Kind) if k in used)}
    lanes = []
    streams = {span.lane: span.stream for span in profile.timeline}
    for lane in sorted(streams, key=lambda lane: _lane_order(lane, streams[lane])):
        spans = sorted(
            (span for span in profile.timeline if span.lane == lane),
            key=lambda span: (span.begin_ms, -span.ms),
        )
        rows = _rows(spans)
        drawn = [
            [
                row,
                names.setdefault(plain.one_line(span.name), len(names)),
                kinds[str(span.kind or "")],
                round(span.begin_ms, 5),
                round(span.ms, 5),
            ]
            for row, span in zip(rows, spans, strict=True)
        ]
        title = plain.one_line(lane)
        idle = all(span.kind in WAITS for span in spans)
        lanes.append({"name": title, "rows": max(rows) + 1, "idle": idle, "spans": drawn})
    return {
        "ms": max(span.begin_ms + span.ms for span in profile.timeline),
        "names": list(names),
        "kinds": [str(kind) for kind in kinds],
        "lanes": lanes,
    }


def timeline_sums(profile: Profile) -> list[tuple[str, str, float]]:
    """Kind, name and milliseconds of the drawn step: the device's busy and idle times.

    Streams run at once. So only the time in which any stream is busy and the idle times by cause
    add up to the step.
    """
    streams = [span for span in profile.timeline if span.lane not in (HOST_LANE, IDLE_LANE)]
    idle = [span for span in profile.timeline if span.kind in WAITS and span.lane != HOST_LANE]
    if not streams:
        return []
    sums = [("busy", f"{words.device(profile.anatomy)} busy", covered(streams))]
    for kind in WAITS:
        ms = sum(span.ms for span in idle if span.kind is kind)
        if ms > 0:
            sums.append((str(kind), words.kind(kind), ms))
    return sums


def covered(spans: Iterable[Span]) -> float:
    """Milliseconds in which at least one of them runs."""
    total, until = 0.0, -math.inf
    for span in sorted(spans, key=lambda span: span.begin_ms):
        end = span.begin_ms + span.ms
        total += max(0.0, end - max(span.begin_ms, until))
        until = max(until, end)
    return total


def memory(profile: Profile) -> Json | None:
    """Bytes in use over the window: by category if known, else after each step."""
    if profile.memory:
        return _by_category(profile.memory)
    by_step = profile.seen.memory_bytes if profile.seen is not None else ()
    if len(by_step) < 2:
        return None
    series = [{"name": "all", "bytes": list(by_step)}]
    return {"x": "step", "at": list(range(1, len(by_step) + 1)), "series": series}


def _lane_order(lane: str, stream: int | None) -> tuple[int, int, str]:
    return {HOST_LANE: 0, IDLE_LANE: 2}.get(lane, 1), -1 if stream is None else stream, lane


def _rows(spans: Sequence[Span]) -> list[int]:
    """A row for each span, so that none overlap: earlier and longer spans lie above."""
    ends: list[float] = []
    rows = []
    for span in spans:
        free = (row for row, end in enumerate(ends) if end <= span.begin_ms + 1e-6)
        row = min(next(free, len(ends)), ROWS - 1)
        if row == len(ends):
            ends.append(0.0)
        ends[row] = max(ends[row], span.begin_ms + span.ms)
        rows.append(row)
    return rows


def _by_category(points: Sequence[MemoryPoint]) -> Json:
    """Curves over common times: between its own points a category keeps its value."""
    categories = {point.category for point in points}
    if len(categories) > 1:
        categories.discard("all")
    stacked = [name for name in STACKED if name in categories]
    names = [*stacked, *sorted(categories - set(stacked))]
    current = dict.fromkeys(names, 0)
    times_ms: list[float] = []
    columns: list[list[int]] = []
    own_points = (point for point in points if point.category in current)
    for ms, group in itertools.groupby(sorted(own_points, key=_at), key=_at):
        current.update({point.category: point.bytes for point in group})
        times_ms.append(round(ms, 4))
        columns.append(list(current.values()))
    indices = _peaks([sum(column) for column in columns])
    series = [
        {"name": plain.one_line(name), "bytes": [columns[index][number] for index in indices]}
        for number, name in enumerate(names)
    ]
    return {"x": "ms", "at": [times_ms[index] for index in indices], "series": series}


def _at(point: MemoryPoint) -> float:
    return point.at_ms


def _peaks(totals: Sequence[int]) -> list[int]:
    """Indices of the points that are drawn: the highest and the last of each stretch."""
    if len(totals) <= DRAWN_POINTS:
        return list(range(len(totals)))
    size = math.ceil(2 * len(totals) / DRAWN_POINTS)
    indices: set[int] = {0, len(totals) - 1}
    for begin in range(0, len(totals), size):
        stretch = range(begin, min(begin + size, len(totals)))
        indices |= {max(stretch, key=totals.__getitem__), stretch[-1]}
    return sorted(indices)
