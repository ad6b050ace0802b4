"""The same operator in another recording of the same program: by name and order in the step."""

from __future__ import annotations

import numpy as np

from flatout.measuring.trace.intervals import NOBODY
from flatout.measuring.trace.recording import Category, Ints, Recording

Marks = tuple[tuple[int, int], ...]


def twins(recording: Recording, marks: Marks, detail: Recording, detail_marks: Marks) -> Ints:
    """For each row of `recording` its row in `detail`; NOBODY: it has none there."""
    found = np.full(len(recording.events), NOBODY, np.int64)
    numbers = {name: number for number, name in enumerate(detail.names)}
    shared = np.array([numbers.get(name, NOBODY) for name in recording.names], np.int64)
    rows, names, order = _ordered(recording, marks, shared)
    theirs, their_names, their_order = _ordered(
        detail, detail_marks[-1:], np.arange(len(detail.names))
    )
    if not len(rows) or not len(theirs):
        return found
    counts = np.bincount(their_names, minlength=len(detail.names))
    kept = (names >= 0) & (counts[names] > 0)
    rows, names, order = rows[kept], names[kept], order[kept]
    # An operator that comes more often here than there is taken for its last one there.
    order = np.minimum(order, counts[names] - 1)
    width = int(counts.max()) + 1
    keys = their_names * width + their_order
    sort = np.argsort(keys)
    found[rows] = theirs[sort][np.searchsorted(keys[sort], names * width + order)]
    return found


def _ordered(recording: Recording, marks: Marks, number: Ints) -> tuple[Ints, Ints, Ints]:
    """Rows of operators and annotations in the steps; their names; which one of its step each is.

    Rows outside of all steps count as one more step.
    """
    events = recording.events
    rows = recording.rows(Category.OPERATOR, Category.ANNOTATION)
    begins = np.array([mark[0] for mark in marks], np.int64)
    step = np.searchsorted(begins, events.begin[rows], side="right")
    if marks:
        inside = (step > 0) & (events.begin[rows] < marks[-1][1])
        rows, step = rows[inside], step[inside]
    names = number[events.name[rows]]
    order = np.lexsort((rows, names, step))
    rows, names, step = rows[order], names[order], step[order]
    if not len(rows):
        return rows, names, rows
    new = np.r_[True, (names[1:] != names[:-1]) | (step[1:] != step[:-1])]
    first = np.flatnonzero(new)[np.cumsum(new) - 1]
    return rows, names, np.arange(len(rows)) - first
