"""Two sequences of names laid side by side, as far as that can be done in one way only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.profiling.trace.intervals import NOBODY
from flatout.profiling.trace.recording import Flags, Ints

MOST_CELLS = 6_000_000
"""Of the table of common sequences: some hundredths of a second."""
LEAST_MARGIN = 64
RUN = 3
"""So many in a row are believed where both sides have something that the other has not."""


def align(mine: Ints, theirs: Ints, where: Ints, meaning: NDArray[np.uint64]) -> tuple[Ints, Flags]:
    """For each of `mine` its place in `theirs`; NOBODY: none, or not for sure.

    Of all longest common sequences each must have this one, at the same place (`where`, of each
    of `theirs`). Where one side only has something more than the other, and the place is the
    same for the same operator, what is found is then the truth. Second: whether what is inside is
    the same too (`meaning`) in all of them.
    """
    count = len(mine)
    if count == len(theirs) and (mine == theirs).all():
        known = mine >= 0
        return np.where(known, np.arange(count), NOBODY), known
    found, same = np.full(count, NOBODY, np.int64), np.zeros(count, np.bool_)
    begin, end = _ends(mine, theirs)
    found[:begin], same[:begin] = np.arange(begin), True
    found[count - end :], same[count - end :] = np.arange(len(theirs) - end, len(theirs)), True
    part = slice(begin, count - end), slice(begin, len(theirs) - end)
    if (count - begin - end) * (len(theirs) - begin - end) <= MOST_CELLS:
        at, alike = _common(mine[part[0]], theirs[part[1]], where[part[1]], meaning[part[1]])
        found[part[0]] = np.where(at >= 0, at + begin, NOBODY)
        same[part[0]] = alike
    found[mine < 0] = NOBODY
    return found, same


def _ends(mine: Ints, theirs: Ints) -> tuple[int, int]:
    """How many at the begin and the end need not be looked at: far from all that differs."""
    length = min(len(mine), len(theirs))
    ahead = mine[:length] != theirs[:length]
    behind = mine[::-1][:length] != theirs[::-1][:length]
    begin = int(ahead.argmax()) if ahead.any() else length
    end = int(behind.argmax()) if behind.any() else length
    differing = max(len(mine), len(theirs)) - begin - end
    # As much as the table may hold is looked at: what is alike may stand for each other there.
    margin = max((int(MOST_CELLS**0.5) - max(differing, 0)) // 2, LEAST_MARGIN)
    overlap = max(begin + end - length, 0)
    return max(begin - overlap - margin, 0), max(end - overlap - margin, 0)


def _common(
    mine: Ints, theirs: Ints, where: Ints, meaning: NDArray[np.uint64]
) -> tuple[Ints, Flags]:
    """Pairs that are in all longest common sequences."""
    count = len(mine)
    found, same = np.full(count, NOBODY, np.int64), np.zeros(count, np.bool_)
    if not count or not len(theirs):
        return found, same
    ahead = _lengths(mine, theirs)
    behind = _lengths(mine[::-1], theirs[::-1])[::-1, ::-1]
    longest = int(ahead[-1, -1])
    for row in range(count):
        if (ahead[row] + behind[row + 1] == longest).any():
            continue  # one of them does without it
        pairs = (mine[row] == theirs) & (ahead[row, :-1] + behind[row + 1, 1:] + 1 == longest)
        at = np.flatnonzero(pairs)
        if (where[at] == where[at[0]]).all():
            found[row] = at[0]
            same[row] = (meaning[at] == meaning[at[0]]).all()
    if longest < min(count, len(theirs)):
        found[~_in_runs(found)] = NOBODY
    return found, same


def _lengths(mine: Ints, theirs: Ints) -> NDArray[np.int32]:
    """Of the longest common sequence of the first i and the first j."""
    found = np.zeros((len(mine) + 1, len(theirs) + 1), np.int32)
    for row, name in enumerate(mine.tolist()):
        longer = found[row, :-1] + (theirs == name if name >= 0 else 0)
        np.maximum.accumulate(np.maximum(found[row, 1:], longer), out=found[row + 1, 1:])
    return found


def _in_runs(found: Ints) -> Flags:
    """Whether each is one of RUN or more whose pairs follow on each other."""
    new = np.r_[True, (found[1:] != found[:-1] + 1) | (found[1:] < 0)]
    run = np.cumsum(new) - 1
    kept: Flags = (np.bincount(run)[run] >= RUN) & (found >= 0)
    return kept
