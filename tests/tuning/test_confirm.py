"""The interval of the confirmation."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.tuning.confirm import interval, unclear

RATIOS = st.lists(st.floats(0.2, 5.0), min_size=1, max_size=11).map(tuple)


@given(RATIOS)
def test_it_holds_the_median_and_is_always_the_same(ratios: tuple[float, ...]) -> None:
    low, high = interval(ratios)
    assert low <= statistics.median(ratios) <= high
    assert interval(ratios) == (low, high)


def test_a_single_pair_is_as_uncertain_as_two_runs_of_one_program() -> None:
    low, high = interval((2.0,))
    assert low == pytest.approx(2.0 * math.exp(-0.196), rel=1e-3)
    assert low * high == pytest.approx(4.0)
    assert unclear((1.5,))


def test_two_pairs_are_enough_where_both_show_it() -> None:
    assert not unclear((1.5, 1.3))
    assert not unclear((0.8, 0.7))
    assert unclear((1.5, 1.05))
    assert unclear((1.04, 1.05, 1.06))
    assert not unclear((1.04, 1.05, 1.06, 1.05, 1.04))


def test_more_pairs_that_agree_make_it_narrow() -> None:
    low, high = interval((1.31, 1.30, 1.29, 1.32, 1.30))
    assert 1.29 <= low <= high <= 1.32
