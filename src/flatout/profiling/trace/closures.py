"""Closures: forward and backward passes inside an optimizer's step.

`optimizer.step(closure)` computes the gradients itself: LBFGS several times, Lightning with every
optimizer. Only the rest of such a step updates weights. What a closure calls after its backward
pass is known if stacks were recorded.
"""

from __future__ import annotations

import numpy as np

from flatout.profiling.trace import operators
from flatout.profiling.trace.intervals import Nest, Segments, union
from flatout.profiling.trace.recording import Category, Flags, Ints, TraceRecording

Spans = tuple[Ints, Ints]
"""Begins and ends, in order, without overlaps."""
NO_SPANS: Spans = (np.empty(0, np.int64), np.empty(0, np.int64))


def backward_rows(recording: TraceRecording) -> Ints:
    """The rows of backward passes, on any thread."""
    events = recording.events
    is_backward = recording.named(lambda name: name.startswith(operators.BACKWARD))[events.name]
    return np.flatnonzero(is_backward & (events.category == Category.OPERATOR))


def spans(
    recording: TraceRecording, rows: Ints, nested: Nest, is_step: Flags, backward: Ints
) -> Spans:
    """The closures on the thread of `rows`. `is_step`: for each of `rows`, an optimizer's step.

    A closure is what lies between a forward operator (or zero_grad) and the end of the backward
    pass that follows it. Without a backward pass a step has no closure, whatever it computes.
    """
    # For each row the depth of the outermost optimizer's step around it, or of its own.
    step_depth = np.where(is_step, nested.depth, len(is_step))
    for level in nested.levels()[1:]:
        parents = nested.parent[level]
        step_depth[level] = np.where(
            parents >= 0, np.minimum(step_depth[level], step_depth[parents]), step_depth[level]
        )
    outermost = is_step & (nested.depth == step_depth)
    first, last = union(nested.begin[outermost], nested.end[outermost])
    if not len(first) or not len(backward):
        return NO_SPANS
    # Rows of this thread's forward passes: with autograd's number, outside backward passes. An
    # optimizer's own update runs without gradients and has no such numbers.
    events = recording.events
    zeroes = recording.named(operators.ZERO_GRAD.search)[events.name[rows]]
    is_numbered = (events.category[rows] == Category.OPERATOR) & (events.sequence[rows] >= 0)
    in_backward = nested.spread(np.isin(rows, backward))
    forward: Ints = rows[(is_numbered | zeroes) & ~in_backward]
    evidence = np.r_[forward, backward]
    is_backward = np.isin(evidence, backward)
    order = np.lexsort((is_backward, events.begin[evidence]))
    evidence, is_backward = evidence[order], is_backward[order]
    step = np.searchsorted(first, events.begin[evidence], side="right") - 1
    inside = (step >= 0) & (events.begin[evidence] < last[step])
    evidence, is_backward, step = evidence[inside], is_backward[inside], step[inside]
    if not is_backward.any():
        return NO_SPANS
    starts = np.r_[True, (step[1:] != step[:-1]) | (~is_backward[1:] & is_backward[:-1])]
    begins = np.flatnonzero(starts)
    has_backward = np.logical_or.reduceat(is_backward, begins)
    ends = np.maximum.reduceat(events.end[evidence], begins)
    return union(events.begin[evidence[begins]][has_backward], ends[has_backward])


def called_spans(nested: Nest, is_step: Flags, called: Ints) -> Spans:
    """The closures inside the steps of one thread, as far as stacks show them.

    is_step: for each row, an optimizer's step. called: 1 in a closure, 0 in none, below 0 unknown.
    A closure ends where the next row is known to be in none.
    """
    rows = np.flatnonzero(nested.spread(is_step) & (is_step | (called >= 0)))
    is_called = (called[rows] > 0) & ~is_step[rows]
    if not is_called.any():
        return NO_SPANS
    starts = is_called & ~np.r_[False, is_called[:-1]]
    begins = np.flatnonzero(starts[is_called])
    rows = rows[is_called]
    return nested.begin[rows[begins]], np.maximum.reduceat(nested.end[rows], begins)


def inside(closures: Spans, begin: Ints) -> Flags:
    """Whether each of these times is in a closure."""
    first, last = closures
    if not len(first):
        return np.zeros(len(begin), np.bool_)
    number = np.searchsorted(first, begin, side="right") - 1
    is_inside: Flags = (number >= 0) & (begin < last[np.maximum(number, 0)])
    return is_inside


def of_closure(closures: Spans, segments: Segments) -> Flags:
    """Whether each segment is in a closure, or leads to one: what precedes it is its Python."""
    flags: Flags = inside(closures, segments.begin) | np.isin(segments.end, closures[0])
    return flags


def python_ns(closures: Spans, nested: Nest, is_step: Flags) -> Ints:
    """How much of each row's own time is a closure's Python: above 0 for optimizers' steps only."""
    times = np.zeros(len(is_step), np.int64)
    if len(closures[0]):
        segments = nested.innermost()
        owned = segments.owner >= 0
        owned[owned] = is_step[segments.owner[owned]]
        owned &= of_closure(closures, segments)
        np.add.at(times, segments.owner[owned], (segments.end - segments.begin)[owned])
    return times
