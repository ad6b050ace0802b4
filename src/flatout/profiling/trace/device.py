"""The device's side: its work, what launched it, and what owns each instant of its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace import intervals, kinds
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.intervals import NOBODY, Segments
from flatout.profiling.trace.recording import DEVICE, Category, Flags, Ints, TraceRecording

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
"""The kinds by precedence if several are active: computation before data movement."""
RANKS = {kind: rank for rank, kind in enumerate(ORDER)}
COMPUTE = RANKS[Kind.COPY]
"""Ranks below this one compute."""


@dataclass(frozen=True)
class Work:
    """The work of one device. All arrays are as long as `rows`, unless stated otherwise."""

    rows: Ints
    """Rows of the recording, in order of begin."""
    rank: Ints
    """Rank of its kind in ORDER."""
    call: Ints
    """Row of the runtime call that launched it; NOBODY if not recorded."""
    operator: Ints
    """Row of the innermost operator or annotation that launched it."""
    launched: Ints
    """Time of its launch; NOBODY if not recorded."""
    orphaned: Flags
    """Runtime calls are recorded, but not the one that launched it: it was already queued when the
    recording began. Nothing waits for the device between a warm-up and the recording."""

    def held(self, recording: TraceRecording, low: int, high: int) -> Segments:
        """The owner of each instant of [low, high): ranks of ORDER, or NOBODY when idle."""
        events = recording.events
        return intervals.sweep(events.begin[self.rows], events.end[self.rows], self.rank, low, high)


def work(recording: TraceRecording, host: Host) -> Work:
    """The work of the busiest device; empty if there is none."""
    rows = _busiest(recording, recording.rows(*DEVICE))
    events = recording.events
    calls = recording.rows(Category.RUNTIME)
    call = _look_up(events.correlation[calls], calls, events.correlation[rows])
    operator = np.where(call >= 0, host.parent[call], NOBODY)
    candidates = recording.rows(Category.OPERATOR, Category.ANNOTATION)
    by_number = _look_up(events.external[candidates], candidates, events.external[rows])
    # If the call is not recorded, the operator's number shows what launched it.
    operator = np.where(call >= 0, operator, by_number)
    launched = np.where(call >= 0, recording.events.begin[call], NOBODY)
    by_operator = (call < 0) & (operator >= 0)
    launched = np.where(by_operator, recording.events.begin[operator], launched)
    has_calls = bool(len(recording.rows(Category.RUNTIME)))
    orphaned = (launched < 0) & has_calls
    # Ranks by name; computation inside an optimizer's step belongs to the optimizer.
    by_name = np.full(len(recording.names), RANKS[Kind.OTHER], np.int64)
    for number in np.flatnonzero(np.bincount(recording.events.name[rows])).tolist():
        by_name[number] = RANKS[kinds.of_kernel(recording.names[number])]
    rank = by_name[recording.events.name[rows]]
    in_optimizer = (operator >= 0) & host.optimizing[operator] & (rank < COMPUTE)
    return Work(
        rows,
        np.where(in_optimizer, RANKS[Kind.OPTIMIZER], rank),
        call,
        operator,
        launched,
        orphaned,
    )


def _busiest(recording: TraceRecording, rows: Ints) -> Ints:
    events = recording.events
    devices: Ints = numbers(recording)[rows]
    if not len(rows):
        return rows
    names, inverse = np.unique(devices, return_inverse=True)
    kernels = events.category[rows] == Category.KERNEL
    weights = (events.end[rows] - events.begin[rows]) * np.where(kernels, 1.0, 1e-3)
    busiest = names[np.argmax(np.bincount(inverse, weights=weights))]
    busiest_rows: Ints = rows[devices == busiest]
    return busiest_rows


def numbers(recording: TraceRecording) -> NDArray[np.int64]:
    """The device of each row: from its arguments, else its process."""
    pids = [pid if isinstance(pid, int) else -1 for pid, _ in recording.threads]
    device_numbers: NDArray[np.int64] = np.where(
        recording.events.device >= 0,
        recording.events.device,
        np.array(pids, np.int64)[recording.events.thread],
    )
    return device_numbers


def streams(recording: TraceRecording, rows: Ints) -> Ints:
    """The stream of each of these rows: from its arguments, else its thread."""
    tids = [tid if isinstance(tid, int) else -1 for _, tid in recording.threads]
    stream_numbers: Ints = np.where(
        recording.events.stream[rows] >= 0,
        recording.events.stream[rows],
        np.array(tids, np.int64)[recording.events.thread[rows]],
    )
    return stream_numbers


def _look_up(keys: Ints, values: Ints, wanted_keys: Ints) -> Ints:
    """The value of each wanted key; NOBODY if there is none."""
    is_valid = keys >= 0
    keys, values = keys[is_valid], values[is_valid]
    if not len(keys):
        return np.full(len(wanted_keys), NOBODY, np.int64)
    order = np.argsort(keys, kind="stable")
    positions = np.minimum(np.searchsorted(keys[order], wanted_keys), len(keys) - 1)
    is_match = (keys[order][positions] == wanted_keys) & (wanted_keys >= 0)
    matches: Ints = np.where(is_match, values[order][positions], NOBODY)
    return matches
