"""Arithmetic with intervals of time: unions, sweeps, nesting. Whole ns, half-open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.profiling.trace.recording import Ints

NOBODY = -1
SLACK_NS = 300
"""Times of old traces (us since 1970 as a double) are rounded to a quarter of a microsecond."""


@dataclass(frozen=True)
class Segments:
    """A stretch of time cut into adjacent pieces, each owned by a number or by NOBODY."""

    begin: Ints
    end: Ints
    owner: Ints

    def of(self, *owners: int) -> Segments:
        """The pieces of these owners."""
        is_owned = np.isin(self.owner, owners)
        return Segments(self.begin[is_owned], self.end[is_owned], self.owner[is_owned])

    def total(self, owner: int) -> int:
        """Total time of this owner."""
        is_owned = self.owner == owner
        return int((self.end[is_owned] - self.begin[is_owned]).sum())


def union(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The same time as intervals that neither overlap nor touch, in order."""
    is_positive = end > begin
    begin, end = begin[is_positive], end[is_positive]
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.r_[True, begin[1:] > reach[:-1]]
    return begin[first], reach[np.r_[np.flatnonzero(first)[1:] - 1, len(reach) - 1]]


def covered(begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """How much of each [low, high) is covered by the union of [begin, end)."""
    first, last = union(begin, end)
    return _before(first, last, high) - _before(first, last, low)


def _before(first: Ints, last: Ints, at: Ints) -> Ints:
    """Time of disjoint intervals before `at`."""
    if not len(first):
        return np.zeros(len(at), np.int64)
    elapsed = np.r_[0, np.cumsum(last - first)]
    number = np.searchsorted(first, at, side="right")
    previous = np.maximum(number - 1, 0)
    excess = np.where(number > 0, np.maximum(last[previous] - at, 0), 0)
    times: Ints = elapsed[number] - excess
    return times


def sweep(begin: Ints, end: Ints, rank: Ints, low: int, high: int) -> Segments:
    """Assign each instant of [low, high) to the smallest rank that is active then.

    Ranks start at 0; adjacent pieces of one owner are merged.
    """
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)
    is_positive = end > begin
    begin, end, rank = begin[is_positive], end[is_positive], rank[is_positive]
    if high <= low:
        return Segments(*(np.empty(0, np.int64) for _ in range(3)))
    times = np.unique(np.r_[low, begin, end, high])
    owner = np.full(len(times) - 1, NOBODY, np.int64)
    for number in np.unique(rank)[::-1]:
        first, last = union(begin[rank == number], end[rank == number])
        steps = np.zeros(len(times), np.int64)
        steps[np.searchsorted(times, first)] += 1
        steps[np.searchsorted(times, last)] -= 1
        owner[np.cumsum(steps)[:-1] > 0] = number
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    return Segments(times[:-1][starts], times[np.r_[starts[1:], len(owner)]], owner[starts])


@dataclass(frozen=True)
class Nest:
    """Events of one thread, each inside its parent."""

    begin: Ints
    end: Ints
    """Never after the parent's, nor after the begin of the next on the same level."""
    parent: Ints
    """Row of the parent; -1: none."""
    depth: Ints

    def levels(self) -> list[Ints]:
        """Rows by depth, the outermost first."""
        order = np.argsort(self.depth, kind="stable")
        cuts = np.flatnonzero(np.diff(self.depth[order])) + 1
        return np.split(order, cuts) if len(order) else []

    def own(self) -> Ints:
        """Time of each event without its children's."""
        durations = self.end - self.begin
        inside = self.parent >= 0
        children: NDArray[Any] = np.bincount(
            self.parent[inside], weights=durations[inside], minlength=len(durations)
        )
        own_times: Ints = np.maximum(durations - np.rint(children).astype(np.int64), 0)
        return own_times

    def spread(self, flag: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether each event or one of its ancestors has the flag."""
        flags = flag.copy()
        for rows in self.levels()[1:]:
            flags[rows] |= flags[self.parent[rows]]
        return flags

    def innermost(self) -> Segments:
        """Each instant assigned to the innermost event."""
        rows = np.flatnonzero(self.end > self.begin)
        if not len(rows):
            return Segments(*(np.empty(0, np.int64) for _ in range(3)))
        depth = self.depth[rows]
        times = np.r_[self.begin[rows], self.end[rows]]
        after = np.r_[rows, self.parent[rows]]
        # At one instant: ends before begins; ends from inside out, begins from outside in.
        starting = np.r_[np.ones(len(rows), np.int64), np.zeros(len(rows), np.int64)]
        order = np.lexsort((np.r_[depth, -depth], starting, times))
        times, after = times[order], after[order]
        is_positive = times[1:] > times[:-1]
        return Segments(times[:-1][is_positive], times[1:][is_positive], after[:-1][is_positive])


def nest(begin: Ints, end: Ints) -> Nest:
    """Nest the events of one thread, which come in order of begin, the longer first.

    With rounded clocks an event may overlap the next one a little: it is cut there.
    """
    count = len(begin)
    numbers = np.arange(count)
    # The ends, cut where a later event begins shortly before one and ends after it.
    uncrossed, event = end.copy(), np.arange(len(begin))
    begins = np.append(begin, np.iinfo(np.int64).max)
    later = np.maximum(np.searchsorted(begin, end - SLACK_NS), event + 1)
    while len(event):
        is_before_end = begins[later] < end[event]
        event, later = event[is_before_end], later[is_before_end]
        crosses = end[later] > end[event]
        uncrossed[event[crosses]] = begin[later[crosses]]
        event, later = event[~crosses], later[~crosses] + 1
    effective_ends = np.sort(np.maximum(uncrossed, begin + 1))
    depth = numbers - np.searchsorted(effective_ends, begin, side="right")
    ordered = np.sort(depth * count + numbers)
    previous = np.searchsorted(ordered, (depth - 1) * count + numbers) - 1
    parents = ordered[np.maximum(previous, 0)] if count else ordered
    inside = (depth > 0) & (previous >= 0)
    parent = np.where(inside, parents % max(count, 1), NOBODY)
    while (is_over := (parent >= 0) & (end[parent] <= begin)).any():
        parent = np.where(is_over, parent[parent], parent)  # where intervals cross
    end = np.maximum(end, begin)
    order = np.argsort(parent, kind="stable")
    siblings = parent[order][1:] == parent[order][:-1]
    first, second = order[:-1][siblings], order[1:][siblings]
    end[first] = np.maximum(np.minimum(end[first], begin[second]), begin[first])
    # Depth, one more than the parent's: unchanged except where intervals cross.
    level, ancestors = np.zeros_like(depth), parent
    while (inside := ancestors >= 0).any():
        level += inside
        ancestors = np.where(inside, parent[ancestors], NOBODY)
    nested = Nest(begin, end, parent, level)
    for rows in nested.levels()[1:]:
        end[rows] = np.maximum(np.minimum(end[rows], end[parent[rows]]), begin[rows])
    return nested
