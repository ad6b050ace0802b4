"""The Guard lets rounding pass and stops what learns otherwise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.tuning.guard import SIGMAS, Reference, judge, loss_sigma
from flatout_agent import wire

LOSSES = tuple(2.0 - 0.01 * i + 0.05 * math.sin(7 * i) for i in range(30))


def reference(noise: float | None = 1.2, own: float | None = 0.0) -> Reference:
    return Reference(noise, own, LOSSES, guard_steps=3)


def gradients(error: float, worst: float = 0.01, **more) -> wire.GuardMeasured:
    return wire.GuardMeasured((error, error), 1.2, worst_tensor="w", worst_ratio=worst, **more)


def test_rounding_passes_and_tells_its_numbers():
    verdict = judge(gradients(0.02), LOSSES, reference(), "rounding")
    assert verdict.passed
    assert verdict.reason == "gradient error 1.7 % of batch noise; loss within 0.0 sigma"
    assert (verdict.gradient_error, verdict.batch_noise) == (0.02, 1.2)


@pytest.mark.parametrize(
    ("measured", "losses", "risk", "word"),
    [
        (gradients(0.9), LOSSES, "rounding", "more than 70 %"),
        (gradients(0.4, norm_ratio=0.6), LOSSES, "rounding", "60 % as long"),
        (gradients(0.2, norm_ratio=1.2), LOSSES, "rounding", "120 % as long"),
        (gradients(0.05), LOSSES, "exact", "more than 1 %"),
        (gradients(0.02, worst=1.4), LOSSES, "rounding", "gradient of w"),
        (gradients(1e-6, worst=0.2), LOSSES, "exact", "gradient of w"),
        (gradients(0.02, finite=False), LOSSES, "rounding", "NaN or Inf"),
        (gradients(0.02), (*LOSSES[:9], None, *LOSSES[10:]), "rounding", "NaN or Inf"),
        (gradients(0.02), tuple(x + 0.2 for x in LOSSES), "rounding", "sigma"),
        (gradients(0.02), tuple(x - 0.2 for x in LOSSES), "rounding", "sigma"),
        (None, tuple(x + 0.2 for x in LOSSES), "rounding", "sigma"),
    ],
)
def test_what_learns_otherwise_is_stopped(measured, losses, risk, word):
    verdict = judge(measured, losses, reference(), risk)
    assert not verdict.passed
    assert word in verdict.reason


def test_nothing_to_compare_is_not_taken_for_the_same():
    assert not judge(None, (), Reference(None, None, (), 3), "exact").passed


def test_without_gradients_the_losses_decide_and_it_is_said():
    verdict = judge(wire.GuardMeasured((), None, "another batch"), LOSSES, reference(), "rounding")
    assert verdict.passed
    assert not verdict.gradient_compared
    assert "gradient not compared: another batch" in verdict.reason


def test_a_program_with_dropout_may_differ_as_much_as_from_itself():
    noisy = reference(own=0.8)
    assert judge(gradients(0.9, worst=2.0), LOSSES, noisy, "rounding").passed
    assert not judge(gradients(1.3), LOSSES, noisy, "rounding").passed


def test_what_you_allowed_is_not_compared_but_must_be_finite():
    other = tuple(x / 2 for x in LOSSES)
    assert judge(gradients(9.0), other, reference(), "semantics").passed
    assert not judge(gradients(9.0), (None, *other[1:]), reference(), "semantics").passed


def test_full_batches_have_no_noise_and_still_allow_rounding():
    assert judge(gradients(0.01), LOSSES, reference(noise=0.0), "rounding").passed
    assert not judge(gradients(0.08), LOSSES, reference(noise=0.0), "rounding").passed


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
