"""The choice: the best for the goal, of equals the simplest, and never one slower than eager."""

from __future__ import annotations

import random

import pytest

from flatout.exporting import choosing, timing
from flatout.exporting.choosing import Contender
from flatout.nouns.exported import Goal


def contender(name: str, rank: int, ms: float, noise: float = 0.002, seed: int = 0) -> Contender:
    draw = random.Random(f"{name}{seed}")
    rounds = tuple(ms * (1 + draw.gauss(0, noise)) for _ in range(12))
    return Contender(name, (rank, 0), name.title(), ms, rounds)


def test_nothing_verified_is_no_choice() -> None:
    assert choosing.choose([], Goal.LATENCY) is None


def test_the_fastest_wins_where_it_is_clear() -> None:
    found = [contender("eager", 0, 10.0), contender("onnxruntime", 4, 5.0)]
    assert choosing.choose(found, Goal.LATENCY) == ("onnxruntime", "fastest with batch 1")
    assert choosing.why_not(found[0], found[1], Goal.LATENCY) == "2.00x the time of Onnxruntime"


def test_of_equals_the_simplest_wins() -> None:
    found = [contender("openvino", 5, 5.0), contender("aoti", 2, 5.01), contender("eager", 0, 9.0)]
    choice = choosing.choose(found, Goal.LATENCY)
    assert choice is not None
    assert choice[0] == "aoti"
    assert "simpler" in choice[1]


@pytest.mark.parametrize("seed", range(5))
def test_a_build_that_is_no_faster_never_displaces_eager(seed: int) -> None:
    found = [
        contender("eager", 0, 10.0, 0.02, seed),
        contender("compile", 3, 9.85, 0.02, seed),
        contender("openvino", 5, 10.4, 0.02, seed),
    ]
    choice = choosing.choose(found, Goal.LATENCY)
    assert choice is not None
    assert choice[0] == "eager"


def test_equals_are_equal_to_the_best_not_to_each_other() -> None:
    """A chain of small steps must not lead from the best to one that is clearly slower."""
    found = [
        contender(name, rank, ms, 0.05)
        for name, rank, ms in (("eager", 0, 5.4), ("aoti", 2, 5.2), ("openvino", 5, 5.0))
    ]
    choice = choosing.choose(found, Goal.LATENCY)
    assert choice is not None
    assert choice[0] == "openvino"


def test_a_gain_that_is_larger_than_the_noise_is_taken_and_one_within_it_is_not() -> None:
    sure = [contender("eager", 0, 10.25, 0.002), contender("aoti", 2, 10.0, 0.002)]
    unsure = [contender("eager", 0, 10.25, 0.1), contender("aoti", 2, 10.0, 0.1)]
    choices = [choosing.choose(found, Goal.LATENCY) for found in (sure, unsure)]
    assert [choice[0] for choice in choices if choice is not None] == ["aoti", "eager"]


def test_the_smallest() -> None:
    found = [Contender("eager", (0, 0), "eager", 100.0), Contender("int8", (4, 0), "int8", 30.0)]
    assert choosing.choose(found, Goal.SIZE) == ("int8", "smallest")


def test_p99_is_earned() -> None:
    build = timing.TimedBuild("x", None)  # type: ignore[arg-type]
    build.rounds[1] = [[1.0] * 90 for _ in range(11)]
    found = timing.latency(build, 1)
    assert found is not None
    assert (found.calls, found.p99_ms) == (990, None)
    build.rounds[1].append([2.0] * 20)
    found = timing.latency(build, 1)
    assert found is not None
    assert (found.calls, found.p99_ms) == (1010, 2.0)
    assert found.p50_ms == 1.0


def test_a_ratio_is_of_rounds_in_which_both_took_turns() -> None:
    """The machine slows down by half during the run: both slow down, the ratio stays."""
    drift = [1 + 0.05 * number for number in range(12)]
    found = timing.ratio([10 * slow for slow in drift], [5 * slow for slow in drift])
    assert found is not None
    value, (low, high) = found
    assert value == pytest.approx(2)
    assert low == pytest.approx(2)
    assert high == pytest.approx(2)
    assert timing.ratio([], [1.0]) is None
