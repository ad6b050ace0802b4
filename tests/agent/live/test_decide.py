"""Deciding from pairs: wrong no more than 1 time in 100, right where there is a gain."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout_agent.live import decide
from live_noise import MODELS
from live_noise import answer as decided

DECISIONS = 2000


def decisions(model: str, gain: float = 1.0, count: int = DECISIONS) -> list[decide.Answer]:
    rng = random.Random(f"{model} {gain}")
    return [decided(MODELS[model](rng), gain) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_what_does_nothing_is_kept_once_in_a_hundred_at_most(model):
    kept = sum(answer.verdict == "faster" for answer in decisions(model))
    assert kept <= 0.01 * DECISIONS


@pytest.mark.parametrize("model", ["gauss 1 %", "gauss 3 %", "heavy tails", "bursts"])
def test_what_costs_a_little_is_not_kept(model):
    kept = sum(answer.verdict == "faster" for answer in decisions(model, 0.98))
    assert kept <= 0.002 * DECISIONS


@pytest.mark.parametrize(
    ("model", "gain", "share"),
    [
        ("gauss 1 %", 1.02, 0.4),
        ("gauss 1 %", 1.05, 0.99),
        ("gauss 1 %", 1.1, 0.99),
        ("gauss 3 %", 1.05, 0.6),
        ("gauss 3 %", 1.1, 0.98),
        ("gauss 10 %", 2.0, 0.99),
        ("heavy tails", 1.1, 0.9),
        ("drift", 1.1, 0.9),
        ("restless first", 1.1, 0.9),
        ("bursts", 1.1, 0.5),
        ("bursts", 2.0, 0.99),
    ],
)
def test_a_gain_is_found(model, gain, share):
    answers = decisions(model, gain, 300)
    assert sum(answer.verdict == "faster" for answer in answers) >= share * len(answers)


@pytest.mark.parametrize(("gain", "pairs"), [(2.0, 1.1), (1.3, 4.5), (1.1, 9)])
def test_a_large_gain_takes_few_pairs(gain, pairs):
    taken = [answer.pairs for answer in decisions("gauss 3 %", gain, 300)]
    assert statistics.fmean(taken) <= pairs


def test_what_does_nothing_takes_few_pairs_where_the_program_is_calm():
    assert statistics.fmean(a.pairs for a in decisions("gauss 1 %", 1.0, 300)) <= 12


ratios = st.lists(st.floats(-1, 1), min_size=1, max_size=40)
noises = st.builds(decide.Noise, st.floats(decide.LEAST_NOISE, 0.3), st.integers(0, 7))


@settings(derandomize=True, deadline=None)
@given(ratios, noises)
def test_the_interval_holds_the_mean(found, own):
    answer, counted = decide.answer(found, own), decide.undisturbed(found)
    assert answer.low <= answer.gain <= answer.high
    assert answer.gain == pytest.approx(math.exp(statistics.fmean(counted)))
    assert answer.pairs == len(counted) >= 0.8 * len(found)


@settings(derandomize=True, deadline=None)
@given(ratios, noises)
def test_swapping_the_two_turns_the_interval_round(found, own):
    answer, swapped = decide.answer(found, own), decide.answer([-r for r in found], own)
    assert swapped.gain == pytest.approx(1 / answer.gain)
    assert (swapped.low, swapped.high) == pytest.approx((1 / answer.high, 1 / answer.low))
    if answer.verdict == "faster":
        assert swapped.verdict == "slower"


SMALL = min(decide.CLEAR)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.floats(-SMALL, SMALL), max_size=decide.FEWEST - 1), noises)
def test_no_answer_from_fewer_pairs_than_the_fewest(found, own):
    assert decide.answer(found, own).verdict == "unclear"


def test_few_pairs_are_enough_for_a_large_difference_and_only_for_that():
    calm = decide.Noise(0.02, 3)
    assert decide.answer([0.5], calm).verdict == "faster"
    assert decide.answer([-0.5], calm).verdict == "slower"
    assert decide.answer([0.3], calm).verdict == "unclear"
    assert decide.answer([0.3, 0.4], calm).verdict == "faster"
    assert decide.answer([0.5, 0.1], calm).verdict == "unclear"
    assert decide.answer([0.5, 0.6], decide.Noise(0.3, 3)).verdict == "unclear"


def test_until_noise_is_known_one_pair_must_differ_more():
    assert decide.answer([0.45], decide.PRIOR).verdict == "unclear"
    assert decide.answer([0.6], decide.PRIOR).verdict == "faster"


def test_a_pair_that_was_disturbed_is_left_out_of_many():
    assert decide.undisturbed([0.2, 2.0]) == [0.2, 2.0]
    assert decide.undisturbed([-2.0, 0.2, 0.21, 0.19, 0.2, 0.22]) == [0.2, 0.21, 0.19, 0.2, 0.22]
    half = [0.2, 0.2, 0.2, 2.0, 2.1, 0.2]
    assert decide.undisturbed(half) == half, "no longer the exception"


@settings(derandomize=True, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2 * decide.MOST, max_size=80), noises)
def test_after_the_most_pairs_there_is_an_answer(found, own):
    answer = decide.answer(found, own)
    assert answer.verdict in ("faster", "slower", "same")
    if answer.verdict == "faster":
        assert answer.low > 1
        assert math.log(answer.gain) >= decide.MATTERS
    if answer.high < 1:
        assert answer.verdict == "slower"


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 200), st.floats(1e-3, 1))
def test_the_interval_narrows_with_pairs_and_widens_with_noise(pairs, deviation):
    half = decide.half_width(pairs, deviation)
    assert decide.half_width(pairs + 1, deviation) < half
    assert decide.half_width(pairs, 2 * deviation) == pytest.approx(2 * half)


def test_noise_of_few_pairs():
    assert decide.noise([]) == decide.noise([0.5]) == decide.Noise(decide.LEAST_NOISE, 0)
    assert decide.noise([0.1, 0.1, 0.1]) == decide.Noise(decide.LEAST_NOISE, 2)
    assert decide.noise([0.1, -0.1]).deviation == pytest.approx(0.2 / math.sqrt(2))


def test_no_pairs_are_no_answer():
    answer = decide.answer([], decide.noise([]))
    assert (answer.verdict, answer.pairs, answer.low, answer.high) == ("unclear", 0, 0.0, math.inf)


def test_what_is_slower_in_its_only_pair_is_not_told_as_no_difference() -> None:
    assert decide.why_not(decide.Answer("unclear", 0.67, 0.45, 0.99, 1)).startswith("slower: 0.67x")


def test_an_interval_that_says_nothing_has_no_ratio():
    noisy = decide.Answer("unclear", 2.97, 0.06, 146.0, 1)
    assert decide.why_not(noisy) == "too noisy to say in 1 pair"
    assert decide.so_far(noisy) == "too noisy to say so far"
    wide = decide.Answer("unclear", 1.1, 0.9, 1.4, 6)
    assert decide.why_not(wide) == "no clear answer in 6 pairs: 1.10x [0.90-1.40]"
