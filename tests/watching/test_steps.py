"""Steps kept within bounds, and what is learnt from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.watching.rules import Pause, TreeSample
from flatout.watching.steps import MOST_STEPS, RankSteps, samples_per_s, step_s, wait_share
from flatout.watching.thinned import KEPT, RECENT, Thinned
from flatout_agent.wire import pulse
from watching.alerts.histories import NOW, steps


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
    assert wait_share([replace(step, wait_s=None) for step in steps(60)]) is None
    assert step_s([]) is wait_share([]) is samples_per_s([]) is None


@pytest.mark.slow
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
    assert rank.history.pauses == {pulse.EVALUATED: Pause(50.0, 100, 100)}
    assert rank.history.longest_gap_s == 0.7  # neither the warm-up nor the compilation
    assert rank.history.p99_gap_s == 0.1
    assert rank.history.early_step_s == 0.1


def test_each_kind_of_pause_has_its_own_rhythm() -> None:
    rank = RankSteps(0, 1)

    def flags(step: int) -> int:
        first = pulse.EVALUATED if step == 3 else 0  # as frameworks do before they train
        epoch = pulse.EPOCH_BEGAN | pulse.EVALUATED if step % 100 == 1 and step > 1 else 0
        return first | epoch | (pulse.SAVED if step % 30 == 0 else 0)

    def duration(step: int) -> float:
        return 90.0 if step % 100 == 1 else 4.0 if step % 30 == 0 else 0.1

    rank.add(steps(34, 0.1, flags=flags, duration=duration))
    assert rank.history.pauses == {
        pulse.EVALUATED: Pause(90.0, 301, 98),
        pulse.EPOCH_BEGAN: Pause(90.0, 301, 100),
        pulse.SAVED: Pause(4.0, 330, 30),
    }
    assert rank.history.usual_gap_s == 0.1
    rank.add(steps(1.25, 0.1, flags=flags, duration=duration, first=341))
    assert rank.history.usual_gap_s == 4.0
    rank.add(steps(3.85, 0.1, flags=flags, duration=duration, first=353))
    assert rank.history.usual_gap_s == 90.0


def test_new_shapes_are_noted_once() -> None:
    rank = RankSteps(0, 1)
    own = steps(10, 0.1)
    rank.add([replace(step, shapes=step.step % 5 or None) for step in own])
    assert list(rank.history.new_shapes_s) == [step.time_s for step in own[:4]]


def test_the_history_begins_anew_where_the_clock_was_put_back() -> None:
    rank = RankSteps(0, 1)
    rank.add(steps(60, 0.1))
    rank.add(steps(1, 0.1, until_s=NOW - 3600, first=601))
    assert [step.step for step in rank.steps] == list(range(601, 611))
    assert rank.history.longest_gap_s == 0.1  # what was learnt stays
    thinned: Thinned[TreeSample] = Thinned()
    for time_s in (100.0, 101.0, 101.5, 101.4, 50.0, 51.0):
        samples = thinned.add(TreeSample(time_s))
    assert [sample.time_s for sample in samples] == [50.0, 51.0]


def test_a_history_is_thinned() -> None:
    thinned: Thinned[TreeSample] = Thinned()
    for second in range(9000):
        kept = thinned.add(TreeSample(second))
    samples = [int(sample.time_s) for sample in kept]
    assert len(samples) == RECENT + KEPT
    assert samples == sorted(samples)
    assert samples[-RECENT:] == list(range(9000 - RECENT, 9000))
