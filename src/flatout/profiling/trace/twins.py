"""The same operator in another recording of the same program: one step beside another one.

Each thread's step is a tree of operators and annotations. Trees are laid side by side from the
outside in: what holds the same is taken as a whole, what differs is aligned by the longest
common sequence of names. A row gets a twin only when every such alignment gives it the same line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flatout.profiling.trace import operators
from flatout.profiling.trace.aligning import align
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.intervals import NOBODY
from flatout.profiling.trace.processor import main_thread
from flatout.profiling.trace.recording import Category, Flags, Ints, Recording

Marks = tuple[tuple[int, int], ...]
ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93), np.uint64(0xFF51AFD7ED558CCD))


@dataclass(frozen=True)
class Side:
    """One of the two recordings. For each of its rows:"""

    thread: Ints
    step: Ints
    """NOBODY: in none, or the mark of one."""
    parent: Ints
    name: Ints
    """Number of the name in the detail; NOBODY: it is not known there."""
    depth: Ints
    number: Ints
    """Among the children of one parent, in their order."""
    order: Ints
    """Rows in some step, those with the same parent, step and thread beside each other."""
    first: Ints
    """Where the row's children begin in `order`."""
    count: Ints

    def children(self, row: int) -> Ints:
        """Rows directly inside, in order."""
        return self.order[self.first[row] : self.first[row] + self.count[row]]

    def tops(self) -> dict[tuple[int, int], Ints]:
        """The outermost rows of each thread and step."""
        rows = np.sort(self.order[self.parent[self.order] < 0])
        found = {}
        for key in np.unique(np.stack([self.thread[rows], self.step[rows]]), axis=1).T.tolist():
            mine = (self.thread[rows] == key[0]) & (self.step[rows] == key[1])
            found[key[0], key[1]] = rows[mine]
        return found

    def hashes(self, own: Ints) -> NDArray[np.uint64]:
        """A number for each row that is the same for trees with the same `own` numbers."""
        found = (own + 2).astype(np.uint64) * ODD[0]
        rows = self.order
        for depth in range(int(self.depth[rows].max(initial=0)), 0, -1):
            mine = rows[self.depth[rows] == depth]
            value = found[mine] ^ (found[mine] >> np.uint64(29))
            value *= (2 * self.number[mine] + 3).astype(np.uint64) * ODD[1]
            np.add.at(found, self.parent[mine], (value ^ (value >> np.uint64(32))) * ODD[2])
        return found


def twins(
    recording: Recording,
    host: Host,
    marks: Marks,
    detail: Recording,
    detail_host: Host,
    detail_marks: Marks,
    where: Ints,
) -> Ints:
    """For each row of `recording` its row in `detail`; NOBODY: it has none there for sure.

    `where`: the place of each row of `detail`. Of its steps the last is taken.
    """
    numbers = {name: number for number, name in enumerate(detail.names)}
    shared = np.array([numbers.get(name, NOBODY) for name in recording.names], np.int64)
    threads = {thread: number for number, thread in enumerate(detail.threads)}
    mine = np.array([threads.get(thread, NOBODY) for thread in recording.threads], np.int64)
    main = main_thread(recording, host)
    if main >= 0 and mine[main] < 0:  # of another process
        mine[main] = main_thread(detail, detail_host)
    ours = _side(recording, host, marks, shared, mine)
    every = np.arange(len(detail.names))
    theirs = _side(detail, detail_host, detail_marks[-1:], every, None)
    return _Pairing(ours, theirs, where).found()


class _Pairing:
    """Two sides, and which rows of the one have been found in the other."""

    def __init__(self, ours: Side, theirs: Side, where: Ints) -> None:
        self.ours, self.theirs, self.where = ours, theirs, where
        self.twin = np.full(len(ours.parent), NOBODY, np.int64)
        self.whole = np.zeros(len(ours.parent), np.bool_)
        """All that is inside is the same there."""
        self.our_hash, self.their_hash = ours.hashes(ours.name), theirs.hashes(theirs.name)
        placed = (theirs.name + 2) * (int(where.max(initial=0)) + 3) + where
        self.meaning = theirs.hashes(placed)
        """The same for rows whose trees have the same names and places."""

    def found(self) -> Ints:
        """Align step by step, then go inside of what is the same."""
        theirs = {thread: rows for (thread, _), rows in self.theirs.tops().items()}
        waiting = [
            (rows, theirs[thread])
            for (thread, _), rows in self.ours.tops().items()
            if thread in theirs
        ]
        while waiting:
            waiting += self._align(*waiting.pop())
        rows = self.ours.order
        for depth in range(1, int(self.ours.depth[rows].max(initial=0)) + 1):
            level = rows[self.ours.depth[rows] == depth]
            level = level[self.whole[self.ours.parent[level]]]
            around = self.twin[self.ours.parent[level]]
            at = self.theirs.first[around] + self.ours.number[level]
            self.twin[level], self.whole[level] = self.theirs.order[at], True
        return self.twin

    def _align(self, mine: Ints, theirs: Ints) -> list[tuple[Ints, Ints]]:
        """Pair these siblings; returns the children of pairs that hold different things."""
        at, same = align(
            self.ours.name[mine],
            self.theirs.name[theirs],
            self.where[theirs],
            self.meaning[theirs],
        )
        rows, there = mine[at >= 0], theirs[at[at >= 0]]
        self.twin[rows] = there
        self.whole[rows] = alike = self.our_hash[rows] == self.their_hash[there]
        inside = ~alike & same[at >= 0]
        return [
            (self.ours.children(row), self.theirs.children(other))
            for row, other in zip(rows[inside].tolist(), there[inside].tolist(), strict=True)
            if self.ours.count[row] and self.theirs.count[other]
        ]


def _side(
    recording: Recording, host: Host, marks: Marks, names: Ints, threads: Ints | None
) -> Side:
    """The trees of these steps. Without marks the whole recording is one step."""
    events, count = recording.events, len(recording.events)
    rows = recording.rows(Category.OPERATOR, Category.ANNOTATION)
    rows = rows[~_marks(recording)[rows]]
    step = np.full(count, NOBODY, np.int64)
    begins = np.array([mark[0] for mark in marks] or [-1], np.int64)
    last = marks[-1][1] if marks else int(events.end.max(initial=0)) + 1
    inside = events.begin[rows] < last
    step[rows[inside]] = np.searchsorted(begins, events.begin[rows[inside]], side="right") - 1
    rows = rows[step[rows] >= 0]
    parent, depth = _parents(host, rows, step)
    thread = events.thread.astype(np.int64) if threads is None else threads[events.thread]
    rows = rows[thread[rows] >= 0]
    order = rows[np.lexsort((rows, parent[rows]))]
    held = order[parent[order] >= 0]
    inner = np.bincount(parent[held], minlength=count)
    first = np.cumsum(inner) - inner + len(order) - len(held)
    number = np.zeros(count, np.int64)
    number[held] = np.arange(len(order) - len(held), len(order)) - first[parent[held]]
    name = names[events.name]
    return Side(thread, step, parent, name, depth, number, order, first, inner)


def _parents(host: Host, rows: Ints, step: Ints) -> tuple[Ints, Ints]:
    """What each row is directly inside of, in its own step, and how deep."""
    parent, depth = np.full(len(step), NOBODY, np.int64), np.zeros(len(step), np.int64)
    around = host.parent[rows]
    kept = (around >= 0) & (step[around] == step[rows])
    parent[rows[kept]] = around[kept]
    around = parent[rows]
    while (inside := around >= 0).any():
        depth[rows] += inside
        around = np.where(inside, parent[around], NOBODY)
    return parent, depth


def _marks(recording: Recording) -> Flags:
    """Whether each row is the mark of a step."""
    found: Flags = recording.named(operators.STEP.fullmatch)[recording.events.name]
    return found
