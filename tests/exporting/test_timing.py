"""Rounds in which builds take turns: what other programs disturb is left out, or told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flatout.exporting import notes, timing
from flatout.exporting.timing import RoundCount, TimedBuild
from flatout.exporting.worker import Broken
from flatout.nouns.exported import Latency

CALLS = 20


class Served:
    """A process that serves a build, whose turns take what they are told to."""

    def __init__(self, turn: Callable[[int], tuple[float, float | None]]) -> None:
        self.turn, self.turns = turn, 0

    def ask(self, order: dict[str, Any], limit_s: float) -> dict[str, Any]:
        if order["do"] == "warm":
            return {"calls": 10}
        ms, waited = self.turn(self.turns)
        self.turns += 1
        return {"ms": [99.0, 99.0, *[ms] * CALLS], "waited": waited}


def build(name: str, turn: Callable[[int], tuple[float, float | None]]) -> TimedBuild:
    return TimedBuild(name, Served(turn))  # type: ignore[arg-type]


def timed(*builds: TimedBuild) -> RoundCount:
    return timing.in_rounds(builds, lambda build: 1, 1.0)


def speedup(eager: TimedBuild, other: TimedBuild) -> float:
    found = timing.ratio(eager.medians(1), other.medians(1))
    return found[0]


def test_a_quiet_machine_takes_twelve_rounds() -> None:
    eager, fast = build("eager", lambda at: (10.0, 0.0)), build("fast", lambda at: (2.0, None))
    assert timed(eager, fast) == RoundCount(timing.ROUNDS, 0, True)
    assert len(eager.medians(1)) == len(fast.medians(1)) == timing.ROUNDS
    assert speedup(eager, fast) == pytest.approx(5)


@pytest.mark.parametrize("disturbed", [(0,), (1, 2, 3), tuple(range(2, 14, 2))])
def test_disturbed_rounds_are_left_out_and_taken_again(disturbed: Sequence[int]) -> None:
    """Another program ran: eager, with its barriers between threads, suffers far more."""
    eager = build("eager", lambda at: (3000.0, 0.4) if at in disturbed else (10.0, 0.01))
    fast = build("fast", lambda at: (4.0 if at in disturbed else 2.0, 0.0))
    found = timed(eager, fast)
    assert found == RoundCount(timing.ROUNDS + len(disturbed), len(disturbed), True)
    assert len(eager.medians(1)) == len(fast.medians(1)) == timing.ROUNDS
    assert speedup(eager, fast) == pytest.approx(5)
    latency = timing.latency(eager, 1)
    assert latency.p50_ms == 10.0
    (note,) = notes._measurement(found, latency)
    assert f"{len(disturbed)} of {found.taken} rounds are left out" in note


def test_a_machine_that_is_always_busy_is_told() -> None:
    eager = build("eager", lambda at: (3000.0 if at % 2 else 10.0, 0.3))
    found = timed(eager, build("fast", lambda at: (2.0, 0.3)))
    assert found == RoundCount(timing.MOST_ROUNDS, timing.MOST_ROUNDS, False)
    assert len(eager.medians(1)) == timing.MOST_ROUNDS
    (note,) = notes._measurement(found, timing.latency(eager, 1))
    assert "figures are rough" in note


def test_a_runtime_that_keeps_itself_waiting_disturbs_nobody() -> None:
    found = timed(build("eager", lambda at: (10.0, 0.0)), build("many", lambda at: (2.0, 0.6)))
    assert found.disturbed == 0


def test_a_build_that_breaks_keeps_the_rounds_before_it() -> None:
    def breaks(at: int) -> tuple[float, float]:
        if at == 5:
            raise Broken("its process crashed")
        return 2.0, 0.0

    eager = build("eager", lambda at: (10.0, 0.3 if at == 2 else 0.0))
    broken = build("broken", breaks)
    assert timed(eager, broken) == RoundCount(13, 1, True)
    assert broken.broken == "its process crashed"
    assert len(broken.medians(1)) == 4
    assert speedup(eager, broken) == pytest.approx(5)


def test_rounds_of_an_earlier_measurement_stay() -> None:
    eager = build("eager", lambda at: (10.0, 0.3 if at == 13 else 0.0))
    timed(eager)
    timed(eager)
    assert len(eager.medians(1)) == 2 * timing.ROUNDS


def test_a_system_that_does_not_tell_is_judged_by_how_eager_varies() -> None:
    assert notes._measurement(RoundCount(12, 0, True), varying(1.2)) == []
    (note,) = notes._measurement(RoundCount(12, 0, True), varying(1.5))
    assert "varied between 10 and 15 ms" in note


def varying(share: float) -> Latency:
    return Latency(1, 240, 11.0, None, 10.0, 10.0 * share)
