"""The device's side: its work, who launched it, and who holds each instant of its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace import intervals, kinds
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.intervals import NOBODY, Segments
from flatout.profiling.trace.recording import DEVICE, Category, Flags, Ints, Recording

ORDER = (
    Kind.TENSOR_CORES,
    Kind.MATMUL,
    Kind.ATTENTION,
    Kind.NORMALISATION,
    Kind.REDUCTION,
    Kind.ELEMENTWISE,
    Kind.OPTIMIZER,
    Kind.CONVERSION,
    Kind.OTHER,
    Kind.COPY,
    Kind.COMMUNICATION,
)
"""Who holds an instant in which several are at work: what computes before what moves data."""
RANKS = {kind: rank for rank, kind in enumerate(ORDER)}
COMPUTE = RANKS[Kind.COPY]
"""Ranks below this one compute."""


@dataclass(frozen=True)
class Work:
    """What one device did. All arrays are as long as `rows`, unless they say otherwise."""

    rows: Ints
    """Rows of the recording, in order of begin."""
    rank: Ints
    """Of its kind in ORDER."""
    call: Ints
    """Row of the runtime's call that launched it; NOBODY: not recorded."""
    operator: Ints
    """Row of the innermost operator or annotation that launched it."""
    launched: Ints
    """When; NOBODY: not recorded."""
    orphaned: Flags
    """The runtime's calls are recorded, but not the one that launched it: it was in the queue when
    the recording began. Nothing waits for the device between a warm-up and the recording."""

    def held(self, recording: Recording, low: int, high: int) -> Segments:
        """Who holds each instant of [low, high): ranks of ORDER, or NOBODY when it is idle."""
        events = recording.events
        return intervals.sweep(events.begin[self.rows], events.end[self.rows], self.rank, low, high)


def work(recording: Recording, host: Host) -> Work:
    """The work of the device that does most; empty where there is none."""
    rows = _busiest(recording, recording.rows(*DEVICE))
    call, operator = _launchers(recording, host, rows)
    launched = np.where(call >= 0, recording.events.begin[call], NOBODY)
    fallback = (call < 0) & (operator >= 0)
    launched = np.where(fallback, recording.events.begin[operator], launched)
    recorded = bool(len(recording.rows(Category.RUNTIME)))
    orphaned = (launched < 0) & recorded
    return Work(rows, _ranks(recording, host, rows, operator), call, operator, launched, orphaned)


def _busiest(recording: Recording, rows: Ints) -> Ints:
    events = recording.events
    devices: Ints = numbers(recording)[rows]
    if not len(rows):
        return rows
    names, inverse = np.unique(devices, return_inverse=True)
    kernels = events.category[rows] == Category.KERNEL
    lasting = (events.end[rows] - events.begin[rows]) * np.where(kernels, 1.0, 1e-3)
    busiest = names[np.argmax(np.bincount(inverse, weights=lasting))]
    mine: Ints = rows[devices == busiest]
    return mine


def numbers(recording: Recording) -> NDArray[np.int64]:
    """The device of each row: as its arguments say, else its process."""
    pids = [pid if isinstance(pid, int) else -1 for pid, _ in recording.threads]
    found: NDArray[np.int64] = np.where(
        recording.events.device >= 0,
        recording.events.device,
        np.array(pids, np.int64)[recording.events.thread],
    )
    return found


def streams(recording: Recording, rows: Ints) -> Ints:
    """The stream of each of these rows: as its arguments say, else its thread."""
    tids = [tid if isinstance(tid, int) else -1 for _, tid in recording.threads]
    found: Ints = np.where(
        recording.events.stream[rows] >= 0,
        recording.events.stream[rows],
        np.array(tids, np.int64)[recording.events.thread[rows]],
    )
    return found


def _launchers(recording: Recording, host: Host, rows: Ints) -> tuple[Ints, Ints]:
    """The call and the operator that launched each row."""
    events = recording.events
    calls = recording.rows(Category.RUNTIME)
    call = _look_up(events.correlation[calls], calls, events.correlation[rows])
    operator = np.where(call >= 0, host.parent[call], NOBODY)
    named = recording.rows(Category.OPERATOR, Category.ANNOTATION)
    known = _look_up(events.external[named], named, events.external[rows])
    # Where the call is not recorded the operator's number says who launched it.
    return call, np.where(call >= 0, operator, known)


def _look_up(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """The value of each wanted key; NOBODY: there is none."""
    kept = keys >= 0
    keys, values = keys[kept], values[kept]
    if not len(keys):
        return np.full(len(wanted), NOBODY, np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    fits = (keys[order][at] == wanted) & (wanted >= 0)
    found: Ints = np.where(fits, values[order][at], NOBODY)
    return found


def _ranks(recording: Recording, host: Host, rows: Ints, operator: Ints) -> Ints:
    """Of the kind that the name says; what computes in an optimizer's step is the optimizer's."""
    by_name = np.full(len(recording.names), RANKS[Kind.OTHER], np.int64)
    for number in np.flatnonzero(np.bincount(recording.events.name[rows])).tolist():
        by_name[number] = RANKS[kinds.of_kernel(recording.names[number])]
    rank = by_name[recording.events.name[rows]]
    optimizing = (operator >= 0) & host.optimizing[operator] & (rank < COMPUTE)
    return np.where(optimizing, RANKS[Kind.OPTIMIZER], rank)
