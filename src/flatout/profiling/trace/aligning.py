"""Two sequences of names aligned, as far as the alignment is unambiguous."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.profiling.trace.intervals import NOBODY
from flatout.profiling.trace.recording import Flags, Ints

MOST_CELLS = 6_000_000
"""Size limit of the table of common sequences: some hundredths of a second."""
LEAST_MARGIN = 64
AROUND = 3
"""Neighbours on either side that identify an operator's line in long differing sequences."""
FACTOR = np.uint64(0x9E3779B97F4A7C15)
RUN = 3
"""Where both sides have extra names, only runs of at least this many matches count."""


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
    begin, end = _ends(left, right)
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


def _ends(left: Ints, right: Ints) -> tuple[int, int]:
    """How many names at either end can be matched directly: they are far from any difference."""
    length = min(len(left), len(right))
    differs_ahead = left[:length] != right[:length]
    differs_behind = left[::-1][:length] != right[::-1][:length]
    begin = int(differs_ahead.argmax()) if differs_ahead.any() else length
    end = int(differs_behind.argmax()) if differs_behind.any() else length
    differing = max(len(left), len(right)) - begin - end
    # The table takes in as much as it may hold: near a difference, equal names are interchangeable.
    margin = max((int(MOST_CELLS**0.5) - max(differing, 0)) // 2, LEAST_MARGIN)
    overlap = max(begin + end - length, 0)
    return max(begin - overlap - margin, 0), max(end - overlap - margin, 0)


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
        matches[~_in_runs(matches)] = NOBODY
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
    rank = _ranks(np.where(is_there, at, len(contexts)))
    number = rank * counts[at] // np.maximum(own_counts[at], 1)
    begins = np.cumsum(counts) - counts
    matches = np.argsort(group, kind="stable")[np.minimum(begins[at] + number, len(right) - 1)]
    return np.where(is_known, matches, NOBODY), same_meaning


def _ranks(group: Ints) -> Ints:
    """How many of the same group come before each."""
    order = np.argsort(group, kind="stable")
    begins = np.cumsum(np.bincount(group)) - np.bincount(group)
    ranks = np.empty(len(group), np.int64)
    ranks[order] = np.arange(len(group)) - begins[group[order]]
    return ranks


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


def _in_runs(matches: Ints) -> Flags:
    """Whether each match is in a run of at least RUN consecutive pairs."""
    starts = np.r_[True, (matches[1:] != matches[:-1] + 1) | (matches[1:] < 0)]
    run = np.cumsum(starts) - 1
    in_runs: Flags = (np.bincount(run)[run] >= RUN) & (matches >= 0)
    return in_runs
