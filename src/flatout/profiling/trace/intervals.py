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
    """A stretch of time cut into pieces that touch, each owned by one number or by NOBODY."""

    begin: Ints
    end: Ints
    owner: Ints

    def of(self, *owners: int) -> Segments:
        """Those of these owners."""
        kept = np.isin(self.owner, owners)
        return Segments(self.begin[kept], self.end[kept], self.owner[kept])

    def total(self, owner: int) -> int:
        """Time of this owner."""
        mine = self.owner == owner
        return int((self.end[mine] - self.begin[mine]).sum())


def union(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The same time as intervals that neither overlap nor touch, in order."""
    kept = end > begin
    begin, end = begin[kept], end[kept]
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.r_[True, begin[1:] > reach[:-1]]
    return begin[first], reach[np.r_[np.flatnonzero(first)[1:] - 1, len(reach) - 1]]


def covered(begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """How much of each [low, high) lies in the union of [begin, end)."""
    first, last = union(begin, end)
    return _before(first, last, high) - _before(first, last, low)


def _before(first: Ints, last: Ints, at: Ints) -> Ints:
    """Time of disjoint intervals before `at`."""
    if not len(first):
        return np.zeros(len(at), np.int64)
    done = np.r_[0, np.cumsum(last - first)]
    number = np.searchsorted(first, at, side="right")
    previous = np.maximum(number - 1, 0)
    over = np.where(number > 0, np.maximum(last[previous] - at, 0), 0)
    found: Ints = done[number] - over
    return found


def sweep(begin: Ints, end: Ints, rank: Ints, low: int, high: int) -> Segments:
    """Give each instant of [low, high) to the smallest rank that is active then.

    `rank` is from 0; the pieces of one owner that touch are one.
    """
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)
    kept = end > begin
    begin, end, rank = begin[kept], end[kept], rank[kept]
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
    new = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    return Segments(times[:-1][new], times[np.r_[new[1:], len(owner)]], owner[new])


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
        """Time of each without its children's."""
        lasting = self.end - self.begin
        inside = self.parent >= 0
        children: NDArray[Any] = np.bincount(
            self.parent[inside], weights=lasting[inside], minlength=len(lasting)
        )
        found: Ints = np.maximum(lasting - np.rint(children).astype(np.int64), 0)
        return found

    def spread(self, flag: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The flag of each event, or of one that it is inside of."""
        found = flag.copy()
        for rows in self.levels()[1:]:
            found[rows] |= found[self.parent[rows]]
        return found

    def innermost(self) -> Segments:
        """Who is at work: each instant is given to the innermost event."""
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
        kept = times[1:] > times[:-1]
        return Segments(times[:-1][kept], times[1:][kept], after[:-1][kept])


def nest(begin: Ints, end: Ints) -> Nest:
    """Nest the events of one thread, which come in order of begin, the longer first.

    Where clocks were rounded an event may reach a little into the next one: it is cut there.
    """
    count = len(begin)
    numbers = np.arange(count)
    # The end that counts: no event is over before it began, nor when the next one just begins.
    over = np.sort(np.maximum(end - SLACK_NS, begin + 1))
    depth = numbers - np.searchsorted(over, begin, side="right")
    ordered = np.sort(depth * count + numbers)
    before = np.searchsorted(ordered, (depth - 1) * count + numbers) - 1
    found = ordered[np.maximum(before, 0)] if count else ordered
    inside = (depth > 0) & (before >= 0)
    parent = np.where(inside, found % max(count, 1), NOBODY)
    return _trimmed(begin, end, _alive(begin, end, parent), depth)


def _alive(begin: Ints, end: Ints, parent: Ints) -> Ints:
    """Parents that are still at it; where intervals cross, the nearest one around them."""
    while (gone := (parent >= 0) & (end[parent] <= begin)).any():
        parent = np.where(gone, parent[parent], parent)
    return parent


def _trimmed(begin: Ints, end: Ints, parent: Ints, depth: Ints) -> Nest:
    end = np.maximum(end, begin)
    order = np.argsort(parent, kind="stable")
    siblings = parent[order][1:] == parent[order][:-1]
    first, second = order[:-1][siblings], order[1:][siblings]
    end[first] = np.maximum(np.minimum(end[first], begin[second]), begin[first])
    found = Nest(begin, end, parent, _depth(parent, depth))
    for rows in found.levels()[1:]:
        end[rows] = np.maximum(np.minimum(end[rows], end[parent[rows]]), begin[rows])
    return found


def _depth(parent: Ints, depth: Ints) -> Ints:
    """One more than the parent's: the same as before, except where intervals cross."""
    level, around = np.zeros_like(depth), parent
    while (inside := around >= 0).any():
        level += inside
        around = np.where(inside, parent[around], NOBODY)
    return level
