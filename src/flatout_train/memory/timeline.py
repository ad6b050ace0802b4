"""Allocations over time, summed by the part of the step that made them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

PARTS = ("before", "forward", "backward", "optimizer", "other")
"""Parts of a step, from the bottom of the chart up; before: in use when recording began."""


@dataclass
class Allocation:
    """`size` bytes in use from `start` to `end`, in seconds; None if before, or
    after, recording.
    """

    start: float | None
    end: float | None
    size: int
    part: str
    place: str


@dataclass(frozen=True)
class TimelinePoint:
    """Bytes in use by part of the step, right after one event."""

    seconds: float
    bytes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.bytes)


class Timeline:
    """Memory in use over time. `before`: bytes in use when recording began, as far as known."""

    def __init__(self, allocations: list[Allocation], before: int) -> None:
        self.allocations = allocations
        self.moments = self._added_up(before)
        self._top = max(self.moments, key=lambda moment: moment.total, default=None)

    @property
    def peak(self) -> int:
        """Most bytes in use at once."""
        return self._top.total if self._top is not None else 0

    @property
    def peak_at(self) -> float | None:
        """Time of the peak in seconds since the first event, or None if there were no events."""
        return self._top.seconds if self._top is not None else None

    def largest(self, count: int = 20) -> list[tuple[int, str, int]]:
        """Bytes, place (file:line) and number of allocations at the peak, most bytes first."""
        if self._top is None:
            return []
        origin, peak_at = self._origin(), self._top.seconds
        sizes_by_place: dict[str, list[int]] = defaultdict(list)
        for allocation in self.allocations:
            start = 0.0 if allocation.start is None else allocation.start - origin
            end = None if allocation.end is None else allocation.end - origin
            if start <= peak_at and (end is None or end > peak_at):
                sizes_by_place[allocation.place].append(allocation.size)
        rows = [(sum(sizes), place, len(sizes)) for place, sizes in sizes_by_place.items()]
        return sorted(rows, reverse=True)[:count]

    def _origin(self) -> float:
        return min((when for when, *_ in self._events()), default=0.0)

    def _events(self) -> list[tuple[float, int, str]]:
        events = []
        for allocation in self.allocations:
            if allocation.start is not None:
                events.append((allocation.start, allocation.size, allocation.part))
            if allocation.end is not None:
                events.append((allocation.end, -allocation.size, allocation.part))
        return sorted(events, key=lambda event: event[0])

    def _added_up(self, before: int) -> list[TimelinePoint]:
        in_use = dict.fromkeys(PARTS, 0)
        in_use["before"] = before
        moments = []
        origin = self._origin()
        for when, change, part in self._events():
            in_use[part] += change
            moments.append(TimelinePoint(when - origin, tuple(in_use.values())))
        return moments
