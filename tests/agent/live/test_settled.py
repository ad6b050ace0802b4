"""After the last decision: what is kept stays on, and little of flatout remains in a step."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

import flatout_agent
from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.attach.handover import Handover
from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.discover.discovery import LEAD_ABSENT_STEPS, Discovery
from flatout_agent.job import Job
from flatout_agent.live import rechecks
from flatout_agent.live import run as live_run
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.run import LiveWatch
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.profile import compile
from planted import late, planted, raising, times

AGENT = str(Path(flatout_agent.__file__).parent)
EPOCH = 16
"""Steps of an epoch."""
MOST_CALLS = 8.5
"""Calls of flatout's functions in a step with nothing on: 55 when all is watched."""


class Loop:
    """A training loop under the agent, as `flatout.live()` puts it there."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, beat: Any = None, **boosts: Any
    ) -> None:
        for module in ("live.recorded_calls", "live.updates", "apply.booster"):
            monkeypatch.setattr(f"flatout_agent.{module}.load", boosts.__getitem__)
        monkeypatch.setattr(live_run, "names", lambda: boosts)
        # Other tests compile in this process.
        monkeypatch.setattr(compile, "in_use", lambda: False)
        self.before = self.hooks()
        self.boosts = boosts
        self.job, self.recorder = Job(), Recorder(str(folder))
        self.booster = Booster(self.job, (), self.recorder)
        self.watch = LiveWatch(self.job, self.booster, self.recorder, wire.LiveOrders())
        self.watch.history = None
        self.watch.beat = beat
        self.discovery = Discovery(self.job, self.watch, self.booster, self.recorder)
        self.watch.leave = self.discovery.remove
        self.discovery.install()
        data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
        self.loader: Any = DataLoader(data, batch_size=64 // EPOCH)
        self.other_model()

    def other_model(self) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.other_optimizer()

    def other_optimizer(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def epoch(self, steps: int = EPOCH) -> None:
        for inputs, targets in itertools.islice(self.loader, steps):
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def settle(self, *kept: str) -> None:
        """Train a little, then keep these and decide nothing more."""
        self.epoch(steps=4)
        group = [Candidate(name, {}, self.boosts[name].BOOST, 1.1) for name in kept]
        self.watch.tuning.state.keep(group, 2.0, 4)
        self.watch.switch(self.watch.tuning.state.on)
        assert self.watch.story is not None
        self.watch.story.close()
        self.watch._settled()
        self.epoch()

    def hooks(self) -> list[Any]:
        """What flatout may have put into torch and into the model."""
        slot = vars(self.model).get("_compiled_call_impl") if hasattr(self, "model") else None
        return [
            len(optimizers._global_optimizer_pre_hooks),
            len(optimizers._global_optimizer_post_hooks),
            nn.Module.__call__,
            torch.autograd.backward,
            torch.autograd.grad,
            torch.save,
            slot,
        ]

    def listens(self) -> bool:
        """Whether the backward passes are watched, as decisions and the Guard need."""
        return not self.discovery._quiet

    def end(self) -> None:
        self.watch.put_back()
        self.booster.undo()
        self.discovery.remove_between_steps()
        self.recorder.close()
        assert self.hooks() == self.before
        (records,) = Path(self.recorder.folder).glob("*.jsonl")
        assert "fault" not in records.read_text()


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Loop]]:
    begun: list[Loop] = []

    def begin(beat: Any = None, **boosts: Any) -> Loop:
        begun.append(Loop(tmp_path, monkeypatch, beat, **boosts))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


def calls_in(action: Callable[[], None]) -> int:
    """How often a function of flatout's is called."""
    files: list[str] = []

    def called(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(AGENT + os.sep):
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(before)
    return len(files)


def beside() -> Any:
    """A boost that does not act on the model's calls."""
    boost = Boost("0", Risk.EXACT, Moment.OPTIMIZER)
    return SimpleNamespace(BOOST=boost, apply=lambda *_: Applied(lambda: None))


def test_with_nothing_on_little_is_called_in_a_step(loop: Callable[..., Loop]) -> None:
    run = loop()
    run.settle()
    assert not isinstance(iter(run.loader), Handover)
    assert "_compiled_call_impl" not in vars(run.model)
    assert calls_in(run.epoch) <= MOST_CALLS * EPOCH


def test_only_the_first_step_with_another_loader_is_told(
    loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., None]:
        method = getattr(LiveWatch, name)

        def count(*args: Any) -> None:
            told[name] += 1
            method(*args)

        return count

    for name in ("backward", "backward_ended", "optimizer_starts", "optimizer_ends", "step"):
        monkeypatch.setattr(LiveWatch, name, counted(name))
    run = loop()
    run.epoch(steps=2)
    assert set(told.values()) == {2}, "all is told while boosts are being tried"
    run.settle()
    hooks = run.hooks()
    told.clear()
    run.epoch()
    run.epoch()
    assert not told, "the same loader has begun again"
    run.loader = DataLoader(run.loader.dataset, batch_size=64 // EPOCH)
    run.epoch()
    assert set(told.values()) == {1}
    assert run.hooks() == hooks, "code that the program has compiled may be guarded by them"


def test_samples_are_counted_though_nobody_is_told(loop: Callable[..., Loop]) -> None:
    run = loop()
    run.loader = DataLoader(run.loader.dataset, batch_size=10)  # the last batch has four
    run.settle()
    run.watch._catch_up()
    before = run.watch.samples
    for _ in range(3):
        run.epoch(steps=7)
    run.watch._catch_up()
    assert run.watch.samples - before == 3 * 64


def test_the_pulse_goes_on(loop: Callable[..., Loop]) -> None:
    losses: list[torch.Tensor] = []
    steps: list[Step] = []
    quiet = dict.fromkeys(("batch_seen", "flag", "other_loader", "end"), lambda *_: None)
    beat = SimpleNamespace(loss_seen=losses.append, step=lambda step, *_: steps.append(step))
    vars(beat).update(quiet)
    run = loop(beat)
    run.settle()
    losses.clear()
    steps.clear()
    run.epoch()
    assert len(losses) == EPOCH
    assert [step.samples for step in steps] == [64 // EPOCH] * EPOCH
    assert all(step.wait_s > 0 for step in steps)


@pytest.mark.parametrize("loader", ["the same", "another each epoch", "none"])
def test_all_is_still_counted(loader: str, loop: Callable[..., Loop]) -> None:
    run = loop()
    if loader == "none":
        parts = (tensor.split(64 // EPOCH) for tensor in run.loader.dataset.tensors)
        run.loader = list(zip(*parts, strict=True))
    run.settle()
    before = run.watch.summary()
    samples, waited_s, ended = run.watch.samples, run.watch.wait_s, run.watch.ended
    for _ in range(2):
        if loader == "another each epoch":
            run.loader = DataLoader(run.loader.dataset, batch_size=64 // EPOCH)
        run.epoch()
    assert run.watch.summary().steps == before.steps + 2 * EPOCH
    # The first batch of another loader is not known yet to be for training.
    counted = 2 * (EPOCH - 1) if loader == "another each epoch" else 2 * EPOCH
    assert run.watch.samples == samples + counted * 64 // EPOCH
    assert (run.watch.wait_s > waited_s) is (loader != "none")
    assert run.watch.ended > ended


def test_what_is_kept_stays_on_and_is_looked_at(loop: Callable[..., Loop]) -> None:
    job: list[Job] = []
    after = rechecks.FIRST_RECHECK + 50
    run = loop(late=planted(late(job, after)), right=planted(times(1.0)))
    job.append(run.job)
    run.settle("right", "late")
    listened = []
    while run.job.steps < 4 * rechecks.FIRST_RECHECK and len(run.booster.applied) > 1:
        run.epoch()
        if run.listens():
            listened.append(run.job.steps)
    assert list(run.booster.applied) == ["right"], "the wrong one was found and taken out"
    assert run.watch.tuning.state.kept_ids == ["right"]
    early = [step for step in listened if step < 2 * rechecks.FIRST_RECHECK]
    assert len(early) <= 1, "the Guard has not looked for longer than it had to"


def test_steps_that_are_undone_save_nothing(loop: Callable[..., Loop]) -> None:
    job: list[Job] = []
    run = loop(late=planted(late(job, rechecks.FIRST_RECHECK + 50)))
    job.append(run.job)
    run.settle("late")
    run.watch.tuning.state.written_s = 10.0  # 5 with it
    settled_at = run.watch._settled_at
    assert settled_at is not None
    while run.booster.applied:
        run.epoch(steps=1)
    undone = run.watch.rechecks.undone
    assert undone > 50
    trained = run.job.steps - settled_at - undone
    assert run.watch.summary().saved_s == pytest.approx(5.0 * trained - 5.0 * undone)
    assert run.watch.summary().now_ms == pytest.approx(10_000.0)


def test_a_call_that_fails_under_a_boost_wakes_it(loop: Callable[..., Loop]) -> None:
    job: list[Job] = []
    breaks = raising(RuntimeError("planted"), lambda: job[0].steps >= 3 * EPOCH)
    run = loop(beside=beside(), broken=planted(breaks))
    job.append(run.job)
    run.settle("beside", "broken")
    run.watch.tuning.state.written_s = 0.001
    while run.job.steps < 3 * EPOCH:
        run.epoch(steps=4)
    assert not run.listens()
    run.epoch(steps=1)
    assert run.watch.tuning.state.kept_ids == ["beside"]
    assert run.watch.story is not None, "the speed of what remains is measured"
    assert run.listens()
    run.watch.story.close()
    run.watch._settled()
    run.epoch()
    assert not run.listens()


def test_a_model_that_the_program_drops_is_freed(loop: Callable[..., Loop]) -> None:
    run = loop()
    run.settle()
    model = weakref.ref(run.model)
    run.other_model()
    gc.collect()
    assert model() is None


def test_a_second_training_is_found(loop: Callable[..., Loop]) -> None:
    run = loop(right=planted(times(1.0)))
    run.settle("right")
    steps = run.job.steps
    run.other_model()
    run.epoch()
    run.epoch()
    assert run.model in run.job.models
    assert run.optimizer in run.job.optimizers
    assert len(run.booster.applied["right"]) == 2, "what is kept acts on the new model"
    assert run.job.steps == steps + 2 * EPOCH - LEAD_ABSENT_STEPS
    assert run.discovery.lead is run.optimizer
    assert not run.listens(), "its search is over"


def test_an_optimizer_that_is_made_again_goes_on_counting(loop: Callable[..., Loop]) -> None:
    run = loop()
    run.settle()
    steps = run.job.steps
    run.other_optimizer()
    run.epoch()
    assert run.job.steps == steps + EPOCH


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_backward_pass_that_creates_a_graph_is_noted(loop: Callable[..., Loop]) -> None:
    run = loop()
    run.epoch(steps=3)
    inputs = run.loader.dataset.tensors[0][:4]
    for how in ({"create_graph": True}, {}, {"retain_graph": True}):
        run.model(inputs).sum().backward(**how)
        assert run.job.graph_created is how.get("create_graph", False)
