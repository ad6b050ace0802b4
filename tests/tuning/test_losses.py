"""Two loss curves of the same seeds agree, or they do not."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.tuning.losses import SIGMAS, loss_sigma

LOSSES = tuple(2.0 - 0.01 * i + 0.05 * math.sin(7 * i) for i in range(30))


@pytest.mark.parametrize("shift", [0.2, -0.2])
def test_a_curve_that_lies_elsewhere_is_told(shift):
    sigma = loss_sigma(tuple(x + shift for x in LOSSES), LOSSES, 0)
    assert sigma is not None
    assert sigma * shift > 0
    assert abs(sigma) > SIGMAS


def test_the_same_curve_is_the_same_and_too_short_a_one_tells_nothing():
    assert loss_sigma(LOSSES, LOSSES, 0) == 0.0
    assert loss_sigma(LOSSES[:2], LOSSES, 0) is None
    assert loss_sigma((), LOSSES, 0) is None


@given(st.integers(0, 10_000))
def test_two_runs_of_the_same_noise_agree(seed):
    """A false alarm in less than one of a few hundred: three sigmas on thirty steps."""
    draw = random.Random(seed)
    curve = [2.0 - 0.01 * i for i in range(60)]
    one, two = ([x + draw.gauss(0, 0.1) for x in curve] for _ in range(2))
    sigma = loss_sigma(tuple(one), tuple(two), 0)
    assert sigma is not None
    assert abs(sigma) < 2 * SIGMAS


@given(
    st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=40),
    st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=40),
)
def test_any_curves_give_a_finite_number_or_none(one, two):
    sigma = loss_sigma(tuple(one), tuple(two), 0)
    assert sigma is None or math.isfinite(sigma)


def test_a_late_parting_of_long_runs_is_not_told():
    """Training turns rounding into another path: thousands of steps later it says nothing."""
    curve = LOSSES * 100
    parted = tuple(x + 0.1 * (step > 1000) for step, x in enumerate(curve))
    assert loss_sigma(parted, curve, 0) == 0.0
