"""Where a CPU trains: who holds each instant of the threads that train."""

from __future__ import annotations

import numpy as np

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace import intervals, operators
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.intervals import Segments
from flatout.profiling.trace.recording import Category, Ints, Recording

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
"""Who holds an instant in which several threads are at work."""
RANKS = {kind: rank for rank, kind in enumerate(ORDER)}


def training_threads(recording: Recording, host: Host, main: int) -> list[int]:
    """The thread that takes the steps, and autograd's."""
    events = recording.events
    backward = recording.named(lambda name: name.startswith(operators.BACKWARD))
    rows = np.flatnonzero(backward[events.name])
    found = {*np.flatnonzero(np.bincount(events.thread[rows])).tolist(), main}
    return sorted(thread for thread in found if thread in host.nests)


def main_thread(recording: Recording, host: Host) -> int:
    """The thread that takes the steps: it holds their marks, else most of the host's events."""
    events = recording.events
    named = recording.named(operators.STEP.fullmatch)[events.name]
    rows = np.flatnonzero(named & (events.category == Category.ANNOTATION))
    rows = rows if len(rows) else host.rows
    return int(np.bincount(events.thread[rows]).argmax()) if len(rows) else -1


def ranks(recording: Recording, host: Host) -> Ints:
    """Of each row: of its kind in ORDER; also of rows that are not the host's."""
    events = recording.events
    by_name = np.full((2, len(recording.names)), RANKS[Kind.PYTHON], np.int64)
    kinds = (Category.OPERATOR, Category.ANNOTATION)
    for number, category in enumerate(kinds):
        counts = np.bincount(events.name[events.category == category])
        for name in np.flatnonzero(counts).tolist():
            by_name[number, name] = RANKS[_kind(recording.names[name], category)]
    found = np.full(len(events), RANKS[Kind.PYTHON], np.int64)
    for number, category in enumerate(kinds):
        rows = events.category == category
        found[rows] = by_name[number, events.name[rows]]
    found[host.optimizing] = RANKS[Kind.OPTIMIZER]
    found[host.loading] = RANKS[Kind.WAIT_DATA]
    return found


def _kind(name: str, category: Category) -> Kind:
    """An annotation may be called anything: only what torch writes itself is believed."""
    if operators.RANKS.search(name) and not operators.COLLECTIVE.match(name):
        return Kind.WAIT_RANKS
    kind = operators.of_operator(name)
    if category == Category.OPERATOR or kind in (Kind.OPTIMIZER, Kind.COMMUNICATION):
        return kind
    return Kind.PYTHON


def held(recording: Recording, host: Host, rank: Ints, main: int, low: int, high: int) -> Segments:
    """Who holds each instant of [low, high): ranks of ORDER. `rank`: of each row."""
    begins, ends, owners = [np.array([low])], [np.array([high])], [np.array([RANKS[Kind.PYTHON]])]
    training = training_threads(recording, host, main)
    communication = rank == RANKS[Kind.COMMUNICATION]
    for thread, (rows, _) in host.nests.items():
        if thread not in training and not communication[rows].any():
            continue
        found = host.working(thread)
        kept = found.owner >= 0
        if thread not in training:
            kept &= communication[found.owner]
        begins.append(found.begin[kept])
        ends.append(found.end[kept])
        owners.append(rank[found.owner[kept]])
    begin, end, owner = (np.concatenate(part) for part in (begins, ends, owners))
    return intervals.sweep(begin, end, owner, low, high)
