"""If a CPU trains: what owns each instant of the training threads."""

from __future__ import annotations

import numpy as np

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace import intervals, operators
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.intervals import Segments
from flatout.profiling.trace.recording import Category, Ints, TraceRecording

ORDER = (
    Kind.MATMUL,
    Kind.ATTENTION,
    Kind.NORMALISATION,
    Kind.REDUCTION,
    Kind.ELEMENTWISE,
    Kind.OPTIMIZER,
    Kind.CONVERSION,
    Kind.OTHER,
    Kind.COMMUNICATION,
    Kind.WAIT_RANKS,
    Kind.WAIT_DATA,
    Kind.PYTHON,
)
"""The kinds by precedence if several threads are active."""
RANKS = {kind: rank for rank, kind in enumerate(ORDER)}


def training_threads(recording: TraceRecording, host: Host, main: int) -> list[int]:
    """The thread that takes the steps, and autograd's threads."""
    events = recording.events
    backward = recording.named(lambda name: name.startswith(operators.BACKWARD))
    rows = np.flatnonzero(backward[events.name])
    threads = {*np.flatnonzero(np.bincount(events.thread[rows])).tolist(), main}
    return sorted(thread for thread in threads if thread in host.nests)


def main_thread(recording: TraceRecording, host: Host) -> int:
    """The thread that takes the steps: the one with their marks, else with most host events."""
    events = recording.events
    is_step = recording.named(operators.STEP.fullmatch)[events.name]
    rows = np.flatnonzero(is_step & (events.category == Category.ANNOTATION))
    rows = rows if len(rows) else host.rows
    return int(np.bincount(events.thread[rows]).argmax()) if len(rows) else -1


def ranks(recording: TraceRecording, host: Host) -> Ints:
    """Rank of each row's kind in ORDER, including rows that are not the host's."""
    events = recording.events
    by_name = np.full((2, len(recording.names)), RANKS[Kind.PYTHON], np.int64)
    kinds = (Category.OPERATOR, Category.ANNOTATION)
    for number, category in enumerate(kinds):
        counts = np.bincount(events.name[events.category == category])
        for name in np.flatnonzero(counts).tolist():
            by_name[number, name] = RANKS[_kind(recording.names[name], category)]
    row_ranks = np.full(len(events), RANKS[Kind.PYTHON], np.int64)
    for number, category in enumerate(kinds):
        rows = events.category == category
        row_ranks[rows] = by_name[number, events.name[rows]]
    row_ranks[host.optimizing] = RANKS[Kind.OPTIMIZER]
    row_ranks[host.loading] = RANKS[Kind.WAIT_DATA]
    return row_ranks


def _kind(name: str, category: Category) -> Kind:
    """Annotations may have any name: only torch's own are trusted."""
    if operators.RANKS.search(name) and not operators.COLLECTIVE.match(name):
        return Kind.WAIT_RANKS
    kind = operators.of_operator(name)
    if category == Category.OPERATOR or kind in (Kind.OPTIMIZER, Kind.COMMUNICATION):
        return kind
    return Kind.PYTHON


def held(
    recording: TraceRecording, host: Host, rank: Ints, main: int, low: int, high: int
) -> Segments:
    """The owner of each instant of [low, high): ranks of ORDER. `rank`: of each row."""
    begins, ends, owners = [np.array([low])], [np.array([high])], [np.array([RANKS[Kind.PYTHON]])]
    training = training_threads(recording, host, main)
    communication = rank == RANKS[Kind.COMMUNICATION]
    for thread, (rows, _) in host.nests.items():
        if thread not in training and not communication[rows].any():
            continue
        segments = host.working(thread)
        is_counted = segments.owner >= 0
        if thread not in training:
            is_counted &= communication[segments.owner]
        owned = np.where(is_counted, rank[segments.owner], 0)
        # Time between the operators of a closure belongs to the user's program, not the update.
        is_python = host.in_closure(thread, segments) & is_counted & host.optimizing[segments.owner]
        owned[is_python] = RANKS[Kind.PYTHON]
        begins.append(segments.begin[is_counted])
        ends.append(segments.end[is_counted])
        owners.append(owned[is_counted])
    begin, end, owner = (np.concatenate(part) for part in (begins, ends, owners))
    return intervals.sweep(begin, end, owner, low, high)
