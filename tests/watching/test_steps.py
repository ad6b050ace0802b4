"""Steps kept within bounds, and what is learnt from them."""

from __future__ import annotations

from flatout.watching.steps import MOST_STEPS, RankSteps, samples_per_s, step_s, wait_share
from flatout.watching.thinned import KEPT, RECENT, Thinned
from flatout_agent.wire import pulse
from watching.alerts.histories import steps


def test_recent_steps_and_their_figures() -> None:
    rank = RankSteps(0, 1)
    rank.add(steps(60, 0.1, wait=0.25))
    recent = rank.recent()
    assert 100 <= len(recent) <= 102
    assert step_s(recent) == 0.1
    assert abs((wait_share(recent) or 0) - 0.25) < 1e-9
    assert abs((samples_per_s(recent) or 0) - 320) < 1e-6
    slow = RankSteps(0, 1)
    slow.add(steps(600, 30.0))
    assert len(slow.recent()) == 5
    assert step_s([]) is wait_share([]) is samples_per_s([]) is None


def test_bounds() -> None:
    rank = RankSteps(0, 1)
    rank.add(steps(900, 0.01))
    assert len(rank.steps) == MOST_STEPS
    rank = RankSteps(0, 1)
    rank.add(steps(3000, 1.0))
    assert 895 <= len(rank.steps) <= 905
    assert [step.step for step in rank.take_fresh(3)] == [1, 1501, 3000]
    assert rank.take_fresh(3) == ()


def test_pauses_are_learnt_apart() -> None:
    rank = RankSteps(0, 1)

    def flags(step: int) -> int:
        return {100: pulse.EVALUATED, 30: pulse.COMPILED}.get(step, 0)

    def duration(step: int) -> float:
        return {100: 50.0, 30: 9.0, 200: 0.7, 5: 3.0}.get(step, 0.1)

    rank.add(steps(60, 0.1, flags=flags, duration=duration))
    assert rank.history.longest_pause_s == 50.0
    assert rank.history.longest_gap_s == 0.7  # neither the warm-up nor the compilation
    assert rank.history.p99_gap_s == 0.1
    assert rank.history.early_step_s == 0.1


def test_a_history_is_thinned() -> None:
    thinned: Thinned[int] = Thinned()
    for second in range(9000):
        samples = thinned.add(second)
    assert len(samples) == RECENT + KEPT
    assert samples == sorted(samples)
    assert samples[-RECENT:] == list(range(9000 - RECENT, 9000))
