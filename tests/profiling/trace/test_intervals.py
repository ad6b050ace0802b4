"""Against a count of every single nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.profiling.trace import intervals
from flatout.profiling.trace.intervals import NOBODY

LAST = 60
FEW = settings(deadline=None)
SPANS = st.lists(
    st.tuples(st.integers(-5, LAST), st.integers(0, 20), st.integers(0, 4)), max_size=12
)


def columns(spans):
    begin, length, rank = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    return begin, begin + length, rank


@FEW
@given(SPANS.filter(bool))
def test_union_covers_the_same_and_touches_itself_nowhere(spans):
    begin, end, _ = columns(spans)
    first, last = intervals.union(begin, end)
    assert [
        any(b <= at < e for b, e in zip(first, last, strict=True)) for at in range(-5, LAST + 20)
    ] == [any(b <= at < e for b, e in zip(begin, end, strict=True)) for at in range(-5, LAST + 20)]
    assert (first[1:] > last[:-1]).all()


@FEW
@given(SPANS.filter(bool), SPANS.filter(bool))
def test_covered_counts_each_instant_once(spans, asked):
    begin, end, _ = columns(spans)
    low, high, _ = columns(asked)
    found = intervals.covered(begin, end, low, high)
    for one, (first, last) in enumerate(zip(low, high, strict=True)):
        inside = [
            any(b <= at < e for b, e in zip(begin, end, strict=True)) for at in range(first, last)
        ]
        assert found[one] == sum(inside)


@FEW
@given(SPANS, st.integers(0, 20), st.integers(21, LAST))
def test_sweep_gives_each_instant_to_the_smallest_rank(spans, low, high):
    begin, end, rank = columns(spans) if spans else (np.empty(0, np.int64),) * 3
    found = intervals.sweep(begin, end, rank, low, high)
    assert found.begin[0] == low and found.end[-1] == high
    assert (found.begin[1:] == found.end[:-1]).all()
    assert (found.owner[1:] != found.owner[:-1]).all()
    for at in range(low, high):
        active = [r for b, e, r in zip(begin, end, rank, strict=True) if b <= at < e]
        owner = found.owner[np.searchsorted(found.begin, at, side="right") - 1]
        assert owner == min(active, default=NOBODY)


def tree(draw, low, high, depth=0):
    """Intervals inside of [low, high) that nest, in units far above the slack of clocks."""
    found, at = [], low
    while at < high and draw(st.booleans()):
        begin = draw(st.integers(at, high - 1))
        end = draw(st.integers(begin + 1, high))
        found.append((begin, end))
        if depth < 3 and end - begin > 1:
            found += tree(draw, begin, end, depth + 1)
        at = end
    return found


@st.composite
def trees(draw):
    return sorted(set(tree(draw, 0, 40)), key=lambda span: (span[0], -span[1]))


@FEW
@given(trees())
def test_nesting_finds_parents_own_time_and_who_is_innermost(spans):
    begin = np.array([span[0] for span in spans], np.int64) * 10_000
    end = np.array([span[1] for span in spans], np.int64) * 10_000
    found = intervals.nest(begin, end)
    for row, (first, last) in enumerate(spans):
        around = [r for r, (b, e) in enumerate(spans) if r < row and b <= first and last <= e]
        assert found.parent[row] == (around[-1] if around else NOBODY)
        assert found.depth[row] == len(around)
    inner = found.innermost()
    own = np.zeros(len(spans), np.int64)
    for at in range(40):
        active = [row for row, (b, e) in enumerate(spans) if b <= at < e]
        number = np.searchsorted(inner.begin, at * 10_000, side="right") - 1
        seen = number >= 0 and at * 10_000 < inner.end[number]
        assert (inner.owner[number] if seen else NOBODY) == (active[-1] if active else NOBODY)
        own[active[-1:]] += 10_000
    assert found.own().tolist() == own.tolist()


@FEW
@given(SPANS.filter(bool))
def test_events_that_cross_still_count_each_instant_once(spans):
    begin, end, _ = columns(sorted(spans, key=lambda span: (span[0], -span[1])))
    found = intervals.nest(begin * 1000, end * 1000)
    first, last = intervals.union(begin * 1000, end * 1000)
    assert 0 <= found.own().sum() <= (last - first).sum()
    inner = found.innermost()
    assert (inner.begin[1:] >= inner.end[:-1]).all()
    inside = (found.parent >= 0) & (found.end > found.begin)
    assert (found.end[inside] <= found.end[found.parent[inside]]).all()


def test_rounded_clocks_make_no_child_of_the_next_event():
    """0.25 us over the next one's begin: the resolution of a double in us since 1970."""
    found = intervals.nest(np.array([0, 10_000]), np.array([10_250, 20_000]))
    assert found.parent.tolist() == [NOBODY, NOBODY]
    assert found.own().tolist() == [10_000, 10_000]


def test_events_shorter_than_the_slack_that_begin_together():
    found = intervals.nest(np.array([0, 0, 0]), np.array([100, 50, 0]))
    assert found.depth.tolist() == [0, 1, 2]
    assert found.parent.tolist() == [NOBODY, 0, 1]


def test_a_short_event_at_the_end_of_another_is_inside_of_it():
    found = intervals.nest(np.array([0, 450, 690]), np.array([700, 600, 1400]))
    assert found.parent.tolist() == [NOBODY, 0, NOBODY]
    assert found.end.tolist() == [690, 600, 1400]
