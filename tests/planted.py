"""A training loop under the guard, and planted boosts that are right or wrong."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout_agent.apply.booster import Booster
from flatout_agent.attach.chain import Depth
from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.job import Job
from flatout_agent.live import checks, rechecks
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.state import Checked, Tick
from flatout_agent.tell.recorder import Recorder
from guarded import cross_entropy, mlp, vectors

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]


def planted(
    layer: Layer,
    risk: Risk = Risk.EXACT,
    moment: Moment = Moment.MODEL,
    at: nn.Module | None = None,
    redraws: bool = False,
) -> Any:
    """A boost that puts `layer` around the models' calls, or around those of one alone."""

    def apply(job: Job, target: Any, params: Any) -> Applied:
        own = layer if at is None or target is at else times(1.0)
        return Applied(job.wrap_call(target, Depth.PRECISION, own))

    return types.SimpleNamespace(BOOST=Boost("0", risk, moment, redraws=redraws), apply=apply)


def planted_update(change: Callable[[Any], None]) -> Any:
    """A boost that changes optimizers, as with another learning rate."""

    def apply(job: Job, target: Any, params: Any) -> Applied:
        own = [dict(group) for group in target.param_groups]
        change(target)

        def undo() -> None:
            for group, before in zip(target.param_groups, own, strict=True):
                group.update(before)

        return Applied(undo)

    return types.SimpleNamespace(BOOST=Boost("0", Risk.EXACT, Moment.OPTIMIZER), apply=apply)


def larger(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 1.01


def alone(value: float, how: str) -> float:
    """What a single rank agrees on."""
    return value


class Program:
    """A training loop with the guard around its calls, as `live.run` has it."""

    def __init__(self, folder: Path, model: nn.Module, data: Any, **boosts: Any) -> None:
        self.model, self.data, self.boosts = model, data, boosts
        self.optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        self.optimizers: list[Any] = [self.optimizer]
        self.job = Job()
        self.recorder = Recorder(str(folder))
        self.booster = Booster(self.job, (), self.recorder)
        self.unsound: list[tuple[list[str], str]] = []
        self.kept: list[Candidate] = []
        self.checks = checks.Checks(self.job, self.booster, self._unsound, alone)
        self.rechecks = rechecks.Rechecks(self.job, self.checks, alone, self._unsound)
        self.watch(model)
        self.job.optimizers.append(self.optimizer)
        self.losses: list[float] = []

    def watch(self, model: nn.Module) -> None:
        self.job.models.append(model)

        def watched(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                if self.checks.replaying:
                    return call(*args, **kwargs)
                return self.checks.call(model, call, args, kwargs)

            return run

        self.job.wrap_call(model, Depth.WATCH, watched)

    def _unsound(self, ids: Any, reason: str) -> None:
        self.unsound.append((list(ids), reason))
        for boost in ids:
            self.booster.off(boost)
        self.kept[:] = [item for item in self.kept if item.id not in ids]

    def candidate(self, name: str) -> Candidate:
        return Candidate(name, {}, self.boosts[name].BOOST, 1.0)

    def keep(self, *names: str) -> None:
        for name in names:
            self.kept.append(self.candidate(name))
            assert self.booster.on(self.kept[-1].order) is None
        self.checks.failed_calls.on = True
        self.rechecks.begin(self.kept)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.checks.backward_ended()

    def step(self) -> None:
        x, y = self.data()
        loss = cross_entropy(self.model(x), y)
        self.losses.append(loss.item())
        self.backward(loss)
        self.update()

    def update(self) -> None:
        for optimizer in self.optimizers:
            self.checks.updates.starts(optimizer)
            optimizer.step()
            self.checks.updates.ends(optimizer)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.job.steps += 1
        for callback in self.job.step_callbacks:
            callback()

    def ask(self, story: Any, step: Callable[[], None] | None = None) -> Any:
        next(story)
        for _ in range(checks.WAIT_UNITS):
            (step or self.step)()
            try:
                story.send(Tick(0.01, 1, True))
            except StopIteration as done:
                return done.value
        raise AssertionError("no verdict")

    def check(self, name: str, step: Callable[[], None] | None = None) -> GuardVerdict:
        """The verdict on one boost alone."""
        checked = self.check_all(name, step=step)
        return checked.refused.get(name, checked.verdict)

    def check_all(self, *names: str, step: Callable[[], None] | None = None) -> Checked:
        """What the guard says of several at once."""
        group = [self.candidate(name) for name in names]
        checked: Checked = self.ask(self.checks.check(group), step)
        return checked


def times(factor: float) -> Layer:
    return lambda call: lambda *args, **kwargs: call(*args, **kwargs) * factor


def raising(error: Exception, when: Callable[[], bool] = lambda: True) -> Layer:
    """A layer under which calls fail."""

    def layer(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if when():
                raise type(error)(*error.args)
            return call(*args)

        return run

    return layer


NO_MEMORY = raising(torch.OutOfMemoryError("CUDA out of memory, as it were"))


class Shift(nn.Module):
    """A module that gives what it is given, and more under the boost `layer`."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x

    def layer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.factor = 1.5
            try:
                return call(*args)
            finally:
                self.factor = 1.0

        return run


def plain(steps: int) -> tuple[list[float], list[torch.Tensor]]:
    """The same program without the guard."""
    torch.manual_seed(0)
    model, losses = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(steps):
        x, y = vectors()
        loss = cross_entropy(model(x), y)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses, [p.detach() for p in model.parameters()]


def assert_unharmed(run: Program) -> None:
    losses, weights = plain(len(run.losses))
    assert run.losses == losses
    assert all(map(torch.equal, weights, run.model.parameters()))


def late(job: list[Job], after: int, factor: float = 1.05) -> Layer:
    def layer(call: Any) -> Any:
        def run(*args: Any) -> Any:
            return call(*args) * (factor if job[0].steps >= after else 1.0)

        return run

    return layer
