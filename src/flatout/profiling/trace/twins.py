"""The same operator in another recording of the same program, one step compared with another.

Each thread's step is a tree of operators and annotations. Trees are compared from the outside in:
equal subtrees are matched as a whole, differing ones are aligned by the longest common
subsequence of names. A row gets a twin only if every such alignment gives it the same line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.profiling.trace import operators
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.intervals import NOBODY
from flatout.profiling.trace.processor import main_thread
from flatout.profiling.trace.recording import Category, Flags, Ints, TraceRecording

Marks = tuple[tuple[int, int], ...]
ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93), np.uint64(0xFF51AFD7ED558CCD))

MOST_CELLS = 6_000_000
"""Size limit of the table of common sequences: some hundredths of a second."""
LEAST_MARGIN = 64
AROUND = 3
"""Neighbours on either side that identify an operator's line in long differing sequences."""
FACTOR = np.uint64(0x9E3779B97F4A7C15)
RUN = 3
"""Where both sides have extra names, only runs of at least this many matches count."""


@dataclass(frozen=True)
class TwinSide:
    """One of the two recordings: facts for each of its rows."""

    thread: Ints
    step: Ints
    """Number of the step; NOBODY if in none or the mark of one."""
    parent: Ints
    name: Ints
    """Number of the name in the detail; NOBODY if missing there."""
    depth: Ints
    number: Ints
    """Position among the children of its parent."""
    order: Ints
    """Rows in some step; those with the same parent, step and thread are adjacent."""
    first: Ints
    """Where the row's children begin in `order`."""
    count: Ints

    def children(self, row: int) -> Ints:
        """Rows directly inside, in order."""
        return self.order[self.first[row] : self.first[row] + self.count[row]]

    def tops(self) -> dict[tuple[int, int], Ints]:
        """The outermost rows of each thread and step."""
        rows = np.sort(self.order[self.parent[self.order] < 0])
        top_rows = {}
        for key in np.unique(np.stack([self.thread[rows], self.step[rows]]), axis=1).T.tolist():
            is_in_step = (self.thread[rows] == key[0]) & (self.step[rows] == key[1])
            top_rows[key[0], key[1]] = rows[is_in_step]
        return top_rows

    def hashes(self, own: Ints) -> NDArray[np.uint64]:
        """A number for each row that is equal for trees with equal `own` numbers."""
        row_hashes = (own + 2).astype(np.uint64) * ODD[0]
        rows = self.order
        for depth in range(int(self.depth[rows].max(initial=0)), 0, -1):
            level = rows[self.depth[rows] == depth]
            value = row_hashes[level] ^ (row_hashes[level] >> np.uint64(29))
            value *= (2 * self.number[level] + 3).astype(np.uint64) * ODD[1]
            np.add.at(row_hashes, self.parent[level], (value ^ (value >> np.uint64(32))) * ODD[2])
        return row_hashes


def twins(
    recording: TraceRecording,
    host: Host,
    marks: Marks,
    detail: TraceRecording,
    detail_host: Host,
    detail_marks: Marks,
    where: Ints,
) -> Ints:
    """For each row of `recording` its row in `detail`; NOBODY if none is certain.

    `where`: the place of each row of `detail`. The last of its steps is used.
    """
    numbers = {name: number for number, name in enumerate(detail.names)}
    shared = np.array([numbers.get(name, NOBODY) for name in recording.names], np.int64)
    threads = {thread: number for number, thread in enumerate(detail.threads)}
    thread_numbers = np.array(
        [threads.get(thread, NOBODY) for thread in recording.threads], np.int64
    )
    main = main_thread(recording, host)
    if main >= 0 and thread_numbers[main] < 0:  # of another process
        thread_numbers[main] = main_thread(detail, detail_host)
    recording_side = _side(recording, host, marks, shared, thread_numbers)
    detail_names = np.arange(len(detail.names))
    detail_side = _side(detail, detail_host, detail_marks[-1:], detail_names, None)
    return _Pairing(recording_side, detail_side, where).twins()


class _Pairing:
    """Two sides, and the rows of one that are matched in the other."""

    def __init__(self, left: TwinSide, right: TwinSide, where: Ints) -> None:
        self.left, self.right, self.where = left, right, where
        self.twin = np.full(len(left.parent), NOBODY, np.int64)
        self.whole = np.zeros(len(left.parent), np.bool_)
        """Whether everything inside is the same on the other side."""
        self.left_hash, self.right_hash = left.hashes(left.name), right.hashes(right.name)
        placed = (right.name + 2) * (int(where.max(initial=0)) + 3) + where
        self.meaning = right.hashes(placed)
        """The same for rows whose trees have the same names and places."""

    def twins(self) -> Ints:
        """Align step by step, then match the insides of equal subtrees."""
        detail_tops = {thread: rows for (thread, _), rows in self.right.tops().items()}
        pairs = [
            (rows, detail_tops[thread])
            for (thread, _), rows in self.left.tops().items()
            if thread in detail_tops
        ]
        while pairs:
            pairs += self._align(*pairs.pop())
        rows = self.left.order
        for depth in range(1, int(self.left.depth[rows].max(initial=0)) + 1):
            level = rows[self.left.depth[rows] == depth]
            level = level[self.whole[self.left.parent[level]]]
            parent_twins = self.twin[self.left.parent[level]]
            positions = self.right.first[parent_twins] + self.left.number[level]
            self.twin[level], self.whole[level] = self.right.order[positions], True
        return self.twin

    def _align(self, siblings: Ints, other_siblings: Ints) -> list[tuple[Ints, Ints]]:
        """Pair these siblings; returns the children of pairs that differ inside."""
        matches, same_meaning = align(
            self.left.name[siblings],
            self.right.name[other_siblings],
            self.where[other_siblings],
            self.meaning[other_siblings],
        )
        paired, paired_twins = siblings[matches >= 0], other_siblings[matches[matches >= 0]]
        self.twin[paired] = paired_twins
        self.whole[paired] = is_alike = self.left_hash[paired] == self.right_hash[paired_twins]
        differs = ~is_alike & same_meaning[matches >= 0]
        return [
            (self.left.children(row), self.right.children(twin))
            for row, twin in zip(
                paired[differs].tolist(), paired_twins[differs].tolist(), strict=True
            )
            if self.left.count[row] and self.right.count[twin]
        ]


def _side(
    recording: TraceRecording, host: Host, marks: Marks, names: Ints, threads: Ints | None
) -> TwinSide:
    """The trees of these steps. Without marks the whole recording is one step."""
    events, count = recording.events, len(recording.events)
    rows = recording.rows(Category.OPERATOR, Category.ANNOTATION)
    is_mark = recording.named(operators.STEP.fullmatch)[events.name]
    rows = rows[~is_mark[rows]]
    step = np.full(count, NOBODY, np.int64)
    begins = np.array([mark[0] for mark in marks] or [-1], np.int64)
    last = marks[-1][1] if marks else int(events.end.max(initial=0)) + 1
    inside = events.begin[rows] < last
    step[rows[inside]] = np.searchsorted(begins, events.begin[rows[inside]], side="right") - 1
    rows = rows[step[rows] >= 0]
    # The parent of each row in its own step, and its depth.
    parent, depth = np.full(len(step), NOBODY, np.int64), np.zeros(len(step), np.int64)
    ancestors = host.parent[rows]
    is_in_step = (ancestors >= 0) & (step[ancestors] == step[rows])
    parent[rows[is_in_step]] = ancestors[is_in_step]
    ancestors = parent[rows]
    while (inside := ancestors >= 0).any():
        depth[rows] += inside
        ancestors = np.where(inside, parent[ancestors], NOBODY)
    thread = events.thread.astype(np.int64) if threads is None else threads[events.thread]
    rows = rows[thread[rows] >= 0]
    order = rows[np.lexsort((rows, parent[rows]))]
    children_rows = order[parent[order] >= 0]
    child_counts = np.bincount(parent[children_rows], minlength=count)
    first = np.cumsum(child_counts) - child_counts + len(order) - len(children_rows)
    number = np.zeros(count, np.int64)
    number[children_rows] = (
        np.arange(len(order) - len(children_rows), len(order)) - first[parent[children_rows]]
    )
    name = names[events.name]
    return TwinSide(thread, step, parent, name, depth, number, order, first, child_counts)


def align(left: Ints, right: Ints, places: Ints, meaning: NDArray[np.uint64]) -> tuple[Ints, Flags]:
    """For each name of `left` its index in `right`; NOBODY if there is none or it is ambiguous.

    All longest common subsequences must contain the match, at the same place (`places`, one for
    each name of `right`). Where only one side has extra names, and the same operator has the same
    place, the result is then exact. The second array says whether the children are the same too
    (`meaning`) in all of them.
    """
    count = len(left)
    if count == len(right) and (left == right).all():
        is_known = left >= 0
        return np.where(is_known, np.arange(count), NOBODY), is_known
    matches, same_meaning = np.full(count, NOBODY, np.int64), np.zeros(count, np.bool_)
    # How many names at either end can be matched directly: they are far from any difference.
    length = min(len(left), len(right))
    differs_ahead = left[:length] != right[:length]
    differs_behind = left[::-1][:length] != right[::-1][:length]
    begin = int(differs_ahead.argmax()) if differs_ahead.any() else length
    end = int(differs_behind.argmax()) if differs_behind.any() else length
    differing = max(len(left), len(right)) - begin - end
    # The table takes in as much as it may hold: near a difference, equal names are interchangeable.
    margin = max((int(MOST_CELLS**0.5) - max(differing, 0)) // 2, LEAST_MARGIN)
    overlap = max(begin + end - length, 0)
    begin, end = max(begin - overlap - margin, 0), max(end - overlap - margin, 0)
    matches[:begin], same_meaning[:begin] = np.arange(begin), True
    matches[count - end :], same_meaning[count - end :] = (
        np.arange(len(right) - end, len(right)),
        True,
    )
    middle = slice(begin, count - end), slice(begin, len(right) - end)
    inner, other = count - begin - end, len(right) - begin - end
    if inner and other:
        find = _common if inner * other <= MOST_CELLS else _by_context
        inner_matches, inner_same = find(
            left[middle[0]], right[middle[1]], places[middle[1]], meaning[middle[1]]
        )
        matches[middle[0]] = np.where(inner_matches >= 0, inner_matches + begin, NOBODY)
        same_meaning[middle[0]] = inner_same
    matches[left < 0] = NOBODY
    return matches, same_meaning


def _common(
    left: Ints, right: Ints, places: Ints, meaning: NDArray[np.uint64]
) -> tuple[Ints, Flags]:
    """Pairs that are in all longest common subsequences."""
    count = len(left)
    matches, same_meaning = np.full(count, NOBODY, np.int64), np.zeros(count, np.bool_)
    if not count or not len(right):
        return matches, same_meaning
    ahead = _lengths(left, right)
    behind = _lengths(left[::-1], right[::-1])[::-1, ::-1]
    longest = int(ahead[-1, -1])
    for row in range(count):
        if (ahead[row] + behind[row + 1] == longest).any():
            continue  # one of them leaves it out
        pairs = (left[row] == right) & (ahead[row, :-1] + behind[row + 1, 1:] + 1 == longest)
        candidates = np.flatnonzero(pairs)
        if (places[candidates] == places[candidates[0]]).all():
            matches[row] = candidates[0]
            same_meaning[row] = (meaning[candidates] == meaning[candidates[0]]).all()
    if longest < min(count, len(right)):
        # Whether each match is in a run of at least RUN consecutive pairs.
        starts = np.r_[True, (matches[1:] != matches[:-1] + 1) | (matches[1:] < 0)]
        run = np.cumsum(starts) - 1
        in_runs: Flags = (np.bincount(run)[run] >= RUN) & (matches >= 0)
        matches[~in_runs] = NOBODY
    return matches, same_meaning


def _by_context(
    left: Ints, right: Ints, places: Ints, meaning: NDArray[np.uint64]
) -> tuple[Ints, Flags]:
    """For sequences too long for the table: matches of a name together with its neighbours.

    All such names in `right` must have one place; the one of the same rank is taken. Random
    choices in a loop make any two steps differ, but each round is like some round of the other
    step.
    """
    contexts, group, counts = np.unique(_contexts(right), return_inverse=True, return_counts=True)
    own = _contexts(left)
    at = np.minimum(np.searchsorted(contexts, own), len(contexts) - 1)
    is_there = contexts[at] == own
    is_known = is_there & _is_one(group, places)[at]
    same_meaning: Flags = is_known & _is_one(group, meaning)[at]
    own_counts = np.bincount(at[is_there], minlength=len(contexts))
    # How many of the same group come before each.
    own_context = np.where(is_there, at, len(contexts))
    order = np.argsort(own_context, kind="stable")
    begins = np.cumsum(np.bincount(own_context)) - np.bincount(own_context)
    rank = np.empty(len(own_context), np.int64)
    rank[order] = np.arange(len(own_context)) - begins[own_context[order]]
    number = rank * counts[at] // np.maximum(own_counts[at], 1)
    begins = np.cumsum(counts) - counts
    matches = np.argsort(group, kind="stable")[np.minimum(begins[at] + number, len(right) - 1)]
    return np.where(is_known, matches, NOBODY), same_meaning


def _contexts(names: Ints) -> NDArray[np.uint64]:
    """A number for each name with its neighbours."""
    padded = np.pad((names + 2).astype(np.uint64), AROUND)
    contexts = np.zeros(len(names), np.uint64)
    for offset in range(2 * AROUND + 1):
        contexts = contexts * FACTOR + padded[offset : offset + len(names)]
    return contexts


def _is_one(group: Ints, values: NDArray[Any]) -> Flags:
    """For each group whether all its values are equal."""
    representative = np.zeros(int(group.max()) + 1, values.dtype)
    representative[group] = values
    differing = np.bincount(group, weights=values != representative[group])
    is_one: Flags = differing == 0
    return is_one


def _lengths(left: Ints, right: Ints) -> NDArray[np.int32]:
    """Lengths of the longest common subsequence of the first i and the first j names."""
    lengths = np.zeros((len(left) + 1, len(right) + 1), np.int32)
    for row, name in enumerate(left.tolist()):
        extended = lengths[row, :-1] + (right == name if name >= 0 else 0)
        np.maximum.accumulate(np.maximum(lengths[row, 1:], extended), out=lengths[row + 1, 1:])
    return lengths
