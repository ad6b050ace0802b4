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


def test_the_fastest_wins_where_it_is_clear() -> None:
    found = [contender("eager", 0, 10.0), contender("onnxruntime", 4, 5.0)]
    assert choosing.choose(found, Goal.LATENCY) == ("onnxruntime", "fastest with batch 1")
    assert choosing.why_not(found[0], found[1], Goal.LATENCY) == "2.00x the time of Onnxruntime"


def test_nothing_verified_is_no_choice_and_the_smallest_wins_by_size() -> None:
    assert choosing.choose([], Goal.LATENCY) is None
    found = [Contender("eager", (0, 0), "eager", 100.0), Contender("int8", (4, 0), "int8", 30.0)]
    assert choosing.choose(found, Goal.SIZE) == ("int8", "smallest")


@pytest.mark.parametrize(
    ("costs_ms", "noise", "chosen", "why"),
    [
        ({"openvino": 5.0, "aoti": 5.01, "eager": 9.0}, 0.002, "aoti", "simpler"),
        # A chain of small steps must not lead from the best to one that is clearly slower.
        ({"eager": 5.4, "aoti": 5.2, "openvino": 5.0}, 0.05, "openvino", "fastest"),
    ],
)
def test_of_those_equal_to_the_best_the_simplest_wins(
    costs_ms: dict[str, float], noise: float, chosen: str, why: str
) -> None:
    ranks = {"eager": 0, "aoti": 2, "openvino": 5}
    found = [contender(name, ranks[name], ms, noise) for name, ms in costs_ms.items()]
    name, reason = choosing.choose(found, Goal.LATENCY)
    assert (name, why in reason) == (chosen, True)


@pytest.mark.parametrize("seed", range(5))
def test_a_build_that_is_no_faster_never_displaces_eager(seed: int) -> None:
    found = [
        contender("eager", 0, 10.0, 0.02, seed),
        contender("compile", 3, 9.85, 0.02, seed),
        contender("openvino", 5, 10.4, 0.02, seed),
    ]
    choice = choosing.choose(found, Goal.LATENCY)
    assert choice[0] == "eager"


def test_a_gain_that_is_larger_than_the_noise_is_taken_and_one_within_it_is_not() -> None:
    sure = [contender("eager", 0, 10.25, 0.002), contender("aoti", 2, 10.0, 0.002)]
    unsure = [contender("eager", 0, 10.25, 0.1), contender("aoti", 2, 10.0, 0.1)]
    choices = [choosing.choose(found, Goal.LATENCY) for found in (sure, unsure)]
    assert [choice[0] for choice in choices if choice is not None] == ["aoti", "eager"]


def test_p99_is_earned() -> None:
    build = timing.TimedBuild("x", None)  # type: ignore[arg-type]
    build.rounds[1] = [[1.0] * 90 for _ in range(11)]
    found = timing.latency(build, 1)
    assert (found.calls, found.p99_ms) == (990, None)
    build.rounds[1].append([2.0] * 20)
    found = timing.latency(build, 1)
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
