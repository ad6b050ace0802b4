"""Lines beside the training, by the data flow of two steps of small loops."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from agent.watch.profile.flow.steps import mark, of_two
from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow

WIDTH = 64
Work = Callable[["Loop"], Any]


def nothing(loop: Loop) -> None:
    """In place of work."""


class Loop:
    """A training loop with work of the user's own before the loss, or after the update."""

    def __init__(self, work: Work = nothing, before: Work = nothing, loss: Work = nothing) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.average = copy.deepcopy(self.model)
        self.kept: list[Any] = []
        self.work, self.before, self.loss = work, before, loss
        self.clipping = False

    def step(self) -> None:
        self.x = torch.randn(256, WIDTH)
        self.output = self.model(self.x)
        self.before(self)
        other = self.loss(self)
        loss = self.output.square().mean()
        if other is not None:
            loss = loss + other
        self.optimizer.zero_grad()
        loss.backward()
        if self.clipping:
            self.clip()
        self.optimizer.step()
        self.work(self)

    def clip(self) -> None:
        total = sum(float(p.grad.square().sum()) for p in self.model.parameters())  # norms
        for p in self.model.parameters():
            p.grad.mul_(min(1.0, 0.001 / total**0.5))

    def followed(self) -> wire.FlowSeen:
        self.step()
        return of_two(Flow([self.model], lambda: False), [self.model], self.step)


def told(seen: wire.FlowSeen) -> set[tuple[str, str]]:
    """Marks of the lines of which it is certain, with what they work on."""
    return {(mark(row.where), row.source) for row in seen.beside if not row.steers}


def average_by_copy(loop: Loop) -> None:
    fresh = copy.deepcopy(loop.model)  # copied
    for new, old in zip(fresh.parameters(), loop.average.parameters(), strict=True):
        new.data = 0.9 * old.data + 0.1 * new.data  # averaged
    loop.average = fresh


def average_in_place(loop: Loop) -> None:
    with torch.no_grad():
        for old, new in zip(loop.average.parameters(), loop.model.parameters(), strict=True):
            old.lerp_(new, 0.1)  # averaged


def test_an_average_of_the_weights_stands_beside() -> None:
    assert told(Loop(average_by_copy).followed()) == {
        ("copied", "weights"),
        ("averaged", "weights"),
    }
    assert told(Loop(average_in_place).followed()) == {("averaged", "weights")}


def test_an_average_that_the_loss_is_computed_with_is_the_training() -> None:
    def distance(loop: Loop) -> Any:
        with torch.no_grad():
            target = loop.average(loop.x)
        return (loop.output - target).square().mean()

    seen = Loop(average_in_place, loss=distance).followed()
    assert told(seen) == set()
    assert "averaged" in {mark(where) for where in seen.training}


def test_singular_values_that_the_host_reads() -> None:
    def spectrum(loop: Loop) -> None:
        for p in loop.model.parameters():
            if p.dim() == 2:
                loop.kept.append(torch.linalg.svdvals(p.detach())[0].item())  # values

    (row,) = Loop(spectrum).followed().beside
    assert (mark(row.where), row.source, row.steers) == ("values", "weights", False)
    assert "aten._linalg_svd" in row.operators


def test_weights_that_are_set_by_what_was_read_are_the_training() -> None:
    def project(loop: Loop) -> None:
        with torch.no_grad():
            for p in loop.model.parameters():
                norm = p.square().sum().item()  # norm
                p.mul_(min(1.0, 100.0 / norm))

    assert told(Loop(project).followed()) == set()


def test_norms_that_clip_the_gradients_are_the_training() -> None:
    loop = Loop()
    loop.clipping = True
    assert told(loop.followed()) == set()


def test_gradients_that_are_cleared_in_place_are_still_gradients() -> None:
    def spread(loop: Loop) -> None:
        flat = torch.cat([p.grad.flatten() for p in loop.model.parameters()])  # joined
        loop.kept.append(flat.sort().values[::10].tolist())  # sorted
        loop.optimizer.zero_grad(set_to_none=False)

    loop = Loop(spread)
    loop.optimizer.zero_grad = functools.partial(  # type: ignore[method-assign]
        loop.optimizer.zero_grad, set_to_none=False
    )
    assert ("sorted", "gradients") in told(loop.followed())


def test_statistics_in_hooks_are_told_as_values_that_are_read() -> None:
    loop = Loop()

    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        loop.kept.append(output.detach().flatten().quantile(0.9).item())  # quantile

    for module in loop.model:
        module.register_forward_hook(hook)
    rows = {(mark(row.where), row.source, row.steers) for row in loop.followed().beside}
    assert rows == {("quantile", "values", True)}


def test_what_is_read_before_the_loss_may_steer_it_and_after_it_may_not() -> None:
    def match(loop: Loop) -> None:
        cost = torch.cdist(loop.output.detach(), loop.output.detach())  # cost
        loop.kept = [cost.argmin(1).tolist()]

    def matched(loop: Loop) -> Any:
        return (loop.output - loop.output[loop.kept[0]]).abs().mean()

    assert told(Loop(before=match, loss=matched).followed()) == set()
    seen = Loop(loss=match).followed()
    assert not any(row.source == "weights" for row in seen.beside)


def test_a_heavy_loss_and_augmentation_are_the_training() -> None:
    def heavy(loop: Loop) -> Any:
        values = torch.linalg.svdvals(loop.output)
        noise = torch.randn(256, WIDTH).sort(dim=1).values.cumsum(0)
        loop.kept.append(values.detach().sum().item())
        return (values / (1 + noise.std())).sum()

    assert told(Loop(loss=heavy).followed()) == set()


def test_a_forward_pass_for_evaluation_is_not_told_here() -> None:
    def evaluate(loop: Loop) -> None:
        with torch.no_grad():
            output = loop.average(torch.randn(64, WIDTH))
            loop.kept.append(output.square().sort().values.mean().item())

    assert Loop(evaluate).followed().beside == ()


def test_gradients_that_are_cloned_to_be_added_up() -> None:
    loop = Loop()

    def step() -> None:
        held: dict[str, torch.Tensor] = {}
        for _ in range(2):
            loop.model(torch.randn(256, WIDTH)).square().mean().backward()
            for name, p in loop.model.named_parameters():
                g = p.grad.clone()  # cloned
                held[name] = held[name] + g if name in held else g  # added
            loop.optimizer.zero_grad()
        for name, p in loop.model.named_parameters():
            p.grad = held[name].clone()  # given back
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.step = step  # type: ignore[method-assign]
    rows = {(mark(row.where), row.source) for row in loop.followed().beside}
    assert rows == {(name, "accumulated") for name in ("cloned", "added", "given back")}


def test_gradients_that_are_changed_on_their_way_are_the_training() -> None:
    loop = Loop()

    def step() -> None:
        loop.model(torch.randn(256, WIDTH)).square().mean().backward()
        clones = [p.grad.clone() for p in loop.model.parameters()]
        for p, clone in zip(loop.model.parameters(), clones, strict=True):
            p.grad = clone - clone.mean()
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.step = step  # type: ignore[method-assign]
    assert loop.followed().beside == ()
