"""CUDA graphs that a script records itself: what watches the script adds nothing to them.

A tape stands for the graph: it notes every operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.boosts import load
from flatout_agent.job import Job
from flatout_agent.live import run
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.rechecks import Rechecks
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch.beat import DeviceLoss
from flatout_agent.watch.profile.watch import ProfileWatch
from flatout_agent.watch.trial import TrialWatch
from guarded import mlp, vectors
from replayed import Tape

ALLOWED = ("clip-grad", "gc-pause")


class Watched:
    """A training loop, as discovery tells a watch of it."""

    def __init__(self, watch: Any) -> None:
        self.watch, self.told = watch, []
        watch.recorder.write = self.told.append
        torch.manual_seed(0)
        self.model = mlp()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        watch.job.models.append(self.model)
        watch.job.optimizers.append(self.optimizer)
        watch.model_found(self.model, (), {})
        watch.notes.on_cuda = True

    def step(self) -> None:
        loss = self.model(vectors()[0]).square().mean()
        self.watch.backward(loss)
        loss.backward()
        self.watch.backward_ended()
        self.watch.optimizer_starts(self.optimizer)
        self.optimizer.step()
        self.watch.optimizer_ends(self.optimizer)
        self.watch.job.steps += 1
        self.watch.step()

    def capture(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """The operators of one step that the script records as a graph."""

        def refused(*args: Any) -> None:
            pytest.fail("not while a graph is recorded")

        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            patch.setattr(torch.cuda, "synchronize", refused)
            patch.setattr(self.watch.notes, "_random_states", refused)
            patch.setattr(self.watch.notes, "padding", refused)
            with Tape() as tape:
                self.step()
        return [func for func, *_ in tape.entries]


@pytest.fixture
def live(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    job = Job()
    orders = wire.LiveOrders(allowed=ALLOWED)
    watch = run.LiveWatch(job, Booster(job, (), recorder), recorder, orders)
    yield Watched(watch)
    watch.put_back()


@pytest.fixture
def trial(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    job = Job()
    watch = TrialWatch(job, Booster(job, (), recorder), recorder, wire.TrialOrders())
    yield Watched(watch)
    watch.notes.close()


def as_written() -> list[Any]:
    """The operators of a step that nothing watches."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Tape() as tape:
        model(vectors()[0]).square().mean().backward()
        optimizer.step()
    return [func for func, *_ in tape.entries]


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", ["live", "trial"])
def test_nothing_is_added_to_a_graph(request, monkeypatch, name, steps):
    watched = request.getfixturevalue(name)
    for _ in range(steps):
        watched.step()
        watched.optimizer.zero_grad()
    assert watched.capture(monkeypatch) == as_written()
    assert watched.watch.recorder._faults == set()


def decided(watched: Watched) -> dict[str, tuple[str, str]]:
    rows = [record for record in watched.told if isinstance(record, wire.Decided)]
    return {row.id: (row.verdict, row.reason) for row in rows}


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_tuning_then_ends(live, monkeypatch, goes_on):
    live.capture(monkeypatch)
    if goes_on:
        live.step()
        assert live.watch.story is None
    else:
        live.watch.program_ends()
    assert decided(live) == dict.fromkeys(ALLOWED, ("declined", run.CAPTURED))
    assert any(isinstance(record, wire.LiveSummary) for record in live.told)


def test_what_is_decided_by_then_stays(live, monkeypatch):
    tuning = live.watch.tuning
    clip, pause = (Candidate(name, {}, load(name).BOOST, 1.1) for name in ALLOWED)
    for _ in range(3):
        live.step()
    tuning._looked, tuning.decisions.untried = True, [pause]
    tuning.state.keep([clip], 1.1, 3)
    live.capture(monkeypatch)
    live.step()
    assert decided(live) == {"gc-pause": ("untried", run.CAPTURED)}
    assert [order.id for order in live.watch.on()] == ["clip-grad"]


def test_a_recheck_copies_nothing_in_a_step_that_is_recorded(monkeypatch):
    job = SimpleNamespace(models=[], optimizers=[], device="cuda", steps=100)
    checks: Any = SimpleNamespace(look_at=lambda kept: None, answered=lambda: True)
    rechecks = Rechecks(job, checks, lambda value, how: value, lambda ids, reason: None)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    rechecks._step()
    assert not rechecks.looking
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    rechecks._step()
    assert rechecks.looking


def test_the_pulse_asks_for_no_loss_while_a_graph_is_recorded(monkeypatch):
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    loss = DeviceLoss()
    loss._buffer, loss._under_way = torch.tensor(2.5), True
    loss._event = SimpleNamespace(query=lambda: not capturing[0] or pytest.fail("asked"))
    assert loss.take() is None
    capturing[0] = False
    assert loss.take() == 2.5
    assert loss.take() is None


def test_a_profile_waits_for_no_device_while_a_graph_is_recorded(recorder, monkeypatch):
    job = Job()
    watch = ProfileWatch(job, Booster(job, (), recorder), recorder, wire.ProfileOrders())
    for on_cuda in (True, False):
        watch.loop.notes.on_cuda = on_cuda
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        watch.step()
        assert bool(watch.loop.steps) is not on_cuda
    watch._restore_profilers()
    watch.loop.remove()


@pytest.mark.gpu
def test_a_scripts_own_graph_can_be_recorded(recorder):
    job = Job()
    watch = run.LiveWatch(job, Booster(job, (), recorder), recorder, wire.LiveOrders())
    model = mlp().cuda()
    job.models.append(model)
    watch.model_found(model, (), {})
    x = vectors()[0].cuda()
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    torch.testing.assert_close(graphed(x), model.__class__(*model).forward(x))
    watch.put_back()
