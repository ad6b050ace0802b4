"""The host's side of a recording: how events nest, thread by thread."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flatout.profiling.trace import closures, operators
from flatout.profiling.trace.closures import NO_SPANS, Spans
from flatout.profiling.trace.intervals import NOBODY, Nest, Segments, nest, union
from flatout.profiling.trace.recording import Category, Flags, Ints, TraceRecording


@dataclass(frozen=True)
class Host:
    """Facts for each row of the recording; rows that are not host work have defaults."""

    rows: Ints
    """Operators, annotations and runtime calls."""
    parent: NDArray[np.int64]
    own: Ints
    """Nanoseconds without nested events."""
    optimizing: Flags
    """Whether it belongs to an optimizer's update: in its step, but in no closure."""
    loading: Flags
    """Whether it is inside the loader's __next__."""
    nests: dict[int, tuple[Ints, Nest]]
    """For each thread: its rows, and how they nest."""
    closures: dict[int, Spans]
    """For each thread: the forward and backward passes inside optimizers' steps."""

    def in_closure(self, thread: int, segments: Segments) -> Flags:
        """Whether these segments of this thread belong to a closure."""
        return closures.of_closure(self.closures.get(thread, NO_SPANS), segments)

    def working(self, thread: int) -> Segments:
        """Which row is active on this thread, over time."""
        rows, nested = self.nests[thread]
        inner = nested.innermost()
        owner = np.where(inner.owner >= 0, rows[inner.owner], NOBODY)
        return Segments(inner.begin, inner.end, owner)

    def around(self, thread: int, at: Ints) -> Ints:
        """The innermost row on this thread at these times; NOBODY if there is none."""
        if thread not in self.nests:
            return np.full(len(at), NOBODY, np.int64)
        return owner_at(self.working(thread), at)


def owner_at(segments: Segments, at: Ints) -> Ints:
    """The owners of these times; NOBODY outside all segments."""
    if not len(segments.begin):
        return np.full(len(at), NOBODY, np.int64)
    number = np.searchsorted(segments.begin, at, side="right") - 1
    inside = (number >= 0) & (at < segments.end[number])
    owners: Ints = np.where(inside, segments.owner[number], NOBODY)
    return owners


def host(recording: TraceRecording) -> Host:
    """Nest the host's events."""
    events, count = recording.events, len(recording.events)
    rows = recording.rows(Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME)
    parent, own = np.full(count, NOBODY, np.int64), np.zeros(count, np.int64)
    optimizing, loading = (
        recording.named(rule.search)[events.name]
        & np.isin(events.category, (Category.OPERATOR, Category.ANNOTATION))
        for rule in (operators.OPTIMIZER_STEP, operators.LOADER)
    )
    nests, spans, backward = {}, {}, closures.backward_rows(recording)
    for thread, thread_rows in by_thread(recording, rows):
        nested = nest(events.begin[thread_rows], events.end[thread_rows])
        parent[thread_rows] = np.where(nested.parent >= 0, thread_rows[nested.parent], NOBODY)
        is_step = optimizing[thread_rows]
        closed = closures.spans(recording, thread_rows, nested, is_step, backward)
        own[thread_rows] = nested.own() - closures.python_ns(closed, nested, is_step)
        closing = closures.inside(closed, nested.begin) & ~is_step
        optimizing[thread_rows] = nested.spread(is_step) & ~closing
        spans[thread] = closed
        loading[thread_rows] = nested.spread(loading[thread_rows])
        nests[thread] = (thread_rows, nested)
    return Host(rows, parent, own, optimizing, loading, nests, spans)


def with_called(recording: TraceRecording, host_side: Host, called: Ints) -> Host:
    """The host with the closures that stacks show, besides those that their passes show.

    called: for each row 1 in a closure, 0 in none, NOBODY if unknown.
    """
    events = recording.events
    is_step = recording.named(operators.OPTIMIZER_STEP.search)[events.name]
    is_step &= np.isin(events.category, (Category.OPERATOR, Category.ANNOTATION))
    own, optimizing = host_side.own.copy(), host_side.optimizing.copy()
    spans = dict(host_side.closures)
    for thread, (rows, nested) in host_side.nests.items():
        steps = is_step[rows]
        begin, end = closures.called_spans(nested, steps, called[rows])
        if not len(begin):
            continue
        before = spans[thread]
        closed = union(np.r_[before[0], begin], np.r_[before[1], end])
        own[rows] = nested.own() - closures.python_ns(closed, nested, steps)
        closing = closures.inside(closed, nested.begin) & ~steps
        optimizing[rows] = nested.spread(steps) & ~closing
        spans[thread] = closed
    return replace(host_side, own=own, optimizing=optimizing, closures=spans)


def by_thread(recording: TraceRecording, rows: Ints) -> list[tuple[int, Ints]]:
    """The rows of each thread, in their order."""
    threads = recording.events.thread[rows]
    order = np.argsort(threads, kind="stable")
    cuts = np.flatnonzero(np.diff(threads[order])) + 1
    groups = np.split(rows[order], cuts) if len(rows) else []
    return [(int(recording.events.thread[group[0]]), group) for group in groups]
