"""Calls without gradients in a run that is tuned: which of them spoil what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.boosts import load
from flatout_agent.job import Job
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.run import LiveWatch
from flatout_agent.live.state import Checked, Tick
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.step_calls import STEPS


@pytest.fixture
def watch(recorder: Recorder) -> Iterator[LiveWatch]:
    job = Job()
    watching = LiveWatch(job, Booster(job, (), recorder), recorder, wire.LiveOrders(allowed=()))
    yield watching
    watching.switch(())
    watching._unwatch_saving()


@pytest.mark.parametrize("epoch_each_step", [False, True])
def test_a_policy_that_acts_in_each_step_belongs_to_it(
    watch: LiveWatch, epoch_each_step: bool
) -> None:
    """But not what a loader of its own feeds."""
    model = torch.nn.Linear(2, 2)
    call = watch._watched(model, 0, model.forward)
    clean = []  # whether the step may be measured
    for step in range(2 * STEPS):
        watch._clean = True
        watch._epoch_began |= epoch_each_step
        with torch.no_grad():
            call(torch.full((3, 2), float(step)))
        clean.append(watch._clean)
        watch.job.steps += 1
    known = 0 if epoch_each_step else STEPS + 1
    assert clean == [False] * (2 * STEPS - known) + [True] * known


@pytest.mark.parametrize("gradients", [True, False])
def test_the_features_of_a_target_are_no_evaluation(watch: LiveWatch, gradients: bool) -> None:
    perceives = torch.nn.Linear(2, 2).requires_grad_(False).eval()
    call = watch._watched(perceives, 1, perceives.forward)
    watch.job.steps, watch._clean = 3, True
    with torch.set_grad_enabled(gradients):
        call(torch.ones(3, 2))
    assert watch._clean
    perceives.requires_grad_(True)
    with torch.set_grad_enabled(gradients):
        call(torch.ones(3, 2))
    assert not watch._clean, "a trained one in evaluation"


def test_a_micro_step_may_call_its_model_twice(
    watch: LiveWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As preference tuning does: the first call alone takes a fraction of the second's time."""
    sizes: list[int] = []

    def unit_ended() -> None:
        sizes.append(watch._size)
        watch._count_from_here()

    monkeypatch.setattr(watch, "_unit_ended", unit_ended)
    watch._by_micro_step, watch._last, watch.job.steps = True, 0.0, 3
    model = torch.nn.Linear(2, 2)
    call = watch._watched(model, 0, model.forward)
    for rows in (1, 2, 3):
        loss = call(torch.ones(rows, 2)).sum() + call(torch.ones(rows, 2)).sum()
        watch.backward(loss)
    assert sizes == [2 * 1 * 2, 2 * 2 * 2]


def ticks_of(watch: LiveWatch) -> list[Tick]:
    """The units that are handed to a story from now on."""
    ticks: list[Tick] = []

    def story() -> Iterator[None]:
        while True:
            ticks.append((yield))  # type: ignore[arg-type]

    watch.story = story()  # type: ignore[assignment]
    next(watch.story)  # type: ignore[arg-type]
    return ticks


def test_a_throw_away_run_ends_by_itself_when_its_time_is_up(
    watch: LiveWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was about to do it tells as untried for lack of time."""
    ended: list[bool] = []
    told: list[wire.Record] = []
    monkeypatch.setattr(watch, "end_at_once", lambda: ended.append(True))
    monkeypatch.setattr(watch, "tell", told.append)
    watch.orders = replace(watch.orders, stop=True)
    watch.tuning.decisions.untried = [Candidate("gc-pause", {}, load("gc-pause").BOOST, 1.1)]
    watch.tuning.budget.throw_away, watch.tuning.budget.ends_at = True, watch.now() + 60.0
    ticks = ticks_of(watch)
    watch._send(Tick(0.1, 1, True))
    assert len(ticks) == 1
    assert not ended
    watch.tuning.budget.ends_at = watch.now() - 1.0
    watch._send(Tick(0.1, 1, True))
    assert len(ticks) == 1
    assert ended
    decided = [record for record in told if isinstance(record, wire.Decided)]
    assert [(row.id, row.verdict, row.why_untried) for row in decided] == [
        ("gc-pause", "untried", "no_time")
    ]


def kept(watch: LiveWatch, *boosts: str) -> list[Candidate]:
    """Keep these in the watch's tuning, as if they were twice as fast together."""
    group = [Candidate(boost, {}, load(boost).BOOST, 1.1) for boost in boosts]
    watch.tuning.state.written_s = 0.1
    watch.tuning.state.keep(group, 2.0, 4)
    return group


def test_what_the_guard_takes_out_no_longer_counts(watch: LiveWatch) -> None:
    kept(watch, "gc-pause", "clip-grad")
    assert watch.summary().now_ms == pytest.approx(50.0)
    watch._unsound(["gc-pause"], "the guard no longer holds")
    told = watch.summary()
    assert [order.id for order in told.kept] == ["clip-grad"]
    assert told.now_ms is None, "nobody knows until it is measured again"
    watch._unsound(["clip-grad"], "nor for this")
    assert watch.summary().now_ms == pytest.approx(100.0)


def test_steps_save_at_the_speed_that_they_had(watch: LiveWatch) -> None:
    kept(watch, "gc-pause", "clip-grad")
    watch.story, watch._settled_at, watch.job.steps = None, 10, 110
    assert watch.summary().saved_s == pytest.approx(100 * (0.1 - 0.05))
    watch._unsound(["gc-pause", "clip-grad"], "a call failed under them")
    watch.job.steps = 510
    assert watch.summary().saved_s == pytest.approx(100 * (0.1 - 0.05)), "as written from then on"


def test_after_the_last_decision_the_rest_is_measured_again(watch: LiveWatch) -> None:
    kept(watch, "gc-pause", "clip-grad")
    watch.story, watch._settled_at, watch.job.steps = None, 10, 10
    watch._unsound(["gc-pause"], "the guard no longer holds")
    for _ in range(30):
        watch.job.steps += 1
        if watch.story is not None:
            watch._unit_ended()
    assert watch.story is None
    assert watch.summary().now_ms is not None


@pytest.mark.slow
def test_a_boost_that_is_tried_is_to_blame_and_not_what_is_kept(watch: LiveWatch) -> None:
    kept(watch, "gc-pause")
    watch._unsound(["gc-pause", "fused-loss"], "a call failed under it")
    assert watch.tuning.state.kept_ids == ["gc-pause"]
    assert not watch.sound()


# Several ranks ----------------------------------------------------------------------------------


class OtherRank:
    """Another rank, which tells these values where both must agree."""

    def __init__(self, watch: LiveWatch, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[float] = []
        self.asked: list[str] = []
        watch.peers.world = 2
        monkeypatch.setattr(watch.peers, "agree", self.agree)

    def agree(self, value: float, how: str) -> float:
        """This rank is the first."""
        self.asked.append(how)
        other = self.told.pop(0) if self.told else value
        return {"first": value, "max": max(value, other), "min": min(value, other)}[how]


@pytest.fixture
def other(watch: LiveWatch, monkeypatch: pytest.MonkeyPatch) -> OtherRank:
    return OtherRank(watch, monkeypatch)


@pytest.mark.parametrize(
    ("own", "told", "expected"),
    [
        (Tick(0.1, 64, True), 64.0, Tick(0.1, 64, True)),
        (Tick(0.1, 64, True), -1.0, Tick(0.1, 64, False)),
        (Tick(0.1, 64, False), 64.0, Tick(0.1, 64, False)),
        (Tick(0.1, 64, True), 48.0, Tick(0.1, 48, True)),
        (Tick(0.1, 0, True), 0.0, Tick(0.1, 0, True)),
    ],
)
def test_a_unit_counts_where_it_is_clean_on_every_rank(
    watch: LiveWatch, other: OtherRank, own: Tick, told: float, expected: Tick
) -> None:
    ticks = ticks_of(watch)
    other.told = [told]
    watch._send(own)
    assert ticks == [expected]
    assert other.asked == ["min"], "one question a unit"


def test_ranks_that_take_a_step_for_long_or_short_agree(
    watch: LiveWatch, other: OtherRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout_agent.live.run.time.perf_counter", lambda: 100.0)
    watch.last_step = Step(backwards=4, updates=1)
    watch._last, other.told = 99.5, [1.5]
    watch._choose_unit()
    assert watch._by_micro_step, "on the other rank it took longer than a second"


def test_ranks_agree_once_a_unit_on_what_workers_may_have_ready(
    watch: LiveWatch, other: OtherRank
) -> None:
    other.told = [6.0]
    assert [watch.buffered() for _ in range(3)] == [6, 6, 6]
    assert other.asked == ["max"]
    watch._count_from_here()
    watch._unit_ended()
    other.told, other.asked = [4.0], []
    assert watch.buffered() == 4


@pytest.mark.parametrize(
    ("own", "told", "near"),
    [
        (GuardVerdict(True, ""), [0.0, 1.0], True),  # refused near the limit by the other
        (GuardVerdict(True, ""), [0.0, 0.0], False),
        (GuardVerdict(False, "", 0.1, near=True), [1.0, 1.0], True),
        (GuardVerdict(False, "", 0.1, near=True), [0.0, 0.0], False),
        (GuardVerdict(False, "", 0.1), [1.0, 1.0], False),
    ],
)
def test_ranks_look_again_at_the_same_boosts(
    watch: LiveWatch,
    other: OtherRank,
    monkeypatch: pytest.MonkeyPatch,
    own: GuardVerdict,
    told: list[float],
    near: bool,
) -> None:
    tried = Candidate("gc-pause", {}, load("gc-pause").BOOST, 1.1)

    def check(group: list[Candidate]) -> Iterator[Any]:
        refused = {} if own.passed else {tried.id: own}
        return Checked([tried] if own.passed else [], refused, GuardVerdict(True, ""))
        yield

    monkeypatch.setattr(watch.checks, "check", check)
    other.told = told
    with pytest.raises(StopIteration) as done:
        next(watch.check([tried]))
    assert done.value.value.sound == []
    assert done.value.value.refused[tried.id].near is near
    assert not done.value.value.refused[tried.id].passed


@pytest.mark.parametrize(
    ("own", "told", "error"),
    [
        (GuardVerdict(True, "", 1e-6), [0.0, 1.0], 1e-6),  # found wrong by the other
        (GuardVerdict(True, "", None), [0.0, 1.0], 0.0),
        (GuardVerdict(True, "", 1e-6), [0.0, 0.0], None),  # not compared by the other
        (GuardVerdict(False, "", None), [1.0, 0.0], None),
        (GuardVerdict(False, "", None), [0.0, 1.0], 0.0),
        (GuardVerdict(False, "", 0.5), [1.0, 0.0], 0.5),
    ],
)
def test_ranks_know_alike_whether_what_is_refused_was_compared(
    watch: LiveWatch, other: OtherRank, own: GuardVerdict, told: list[float], error: float | None
) -> None:
    """What was not compared stays as it is, so the ranks would take out other boosts."""
    other.told = told
    agreed = watch._agreed(own)
    assert (agreed.passed, agreed.error) == (False, error)


def test_a_call_that_raised_on_another_rank_spoils_the_pair_here(
    watch: LiveWatch, other: OtherRank
) -> None:
    other.told = [0.0]
    assert not watch.sound()


def test_a_single_process_asks_nobody(watch: LiveWatch) -> None:
    tick = Tick(0.1, 64, True)
    assert watch._of_all_ranks(tick) is tick
    verdict = GuardVerdict(False, "other outputs", None)
    assert watch._agreed(verdict) == verdict
