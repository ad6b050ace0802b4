"""Gradients of weights that `backward` computes, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from agent.watch.profile.flow.steps import of_two, text
from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow

WIDTH = 32


class Loop:
    """A training loop whose variables live from one step to the next."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.params, 0.01)
        self.kept: list[Any] = []
        self.x = torch.randn(128, WIDTH)
        self.steps = itertools.count()

    def loss(self) -> torch.Tensor:
        return self.model(self.x).square().mean()

    def train(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()

    def followed(self, step: Callable[[Loop], Any]) -> tuple[wire.AgainSeen, ...]:
        step(self)
        return of_two(Flow([self.model], lambda: False), [self.model], lambda: step(self)).again


def norm(grads: Any) -> float:
    return float(torch.stack([grad.detach().norm() for grad in grads]).norm())


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("part", [slice(None), slice(2, None)])
def test_gradients_that_backward_gives_too(to_none: bool, part: slice) -> None:
    def step(loop: Loop) -> None:
        loss = loop.loss()
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params[part], retain_graph=True)))
        loop.optimizer.zero_grad(set_to_none=to_none)
        loop.train(loss)

    (row,) = Loop().followed(step)
    assert row.calls == 1
    assert "torch.autograd.grad(loss" in text(row.where)
    assert text(row.backward_where) == "loss.backward()"
    assert row.s > 0
    assert row.flops > 0


def test_gradients_that_backward_gave_before() -> None:
    def step(loop: Loop) -> None:
        loss = loop.loss()
        loop.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params)))
        loop.optimizer.step()

    (row,) = Loop().followed(step)
    assert text(row.where).startswith("loop.kept.append")


def test_calls_on_one_line_are_told_once() -> None:
    def logged(loop: Loop, loss: torch.Tensor) -> float:
        return norm(torch.autograd.grad(loss, loop.params, retain_graph=True))  # logged

    def step(loop: Loop) -> None:
        loss = loop.loss()
        loop.kept.append(logged(loop, loss) + logged(loop, loss))
        loop.optimizer.zero_grad()
        loop.train(loss)

    (row,) = Loop().followed(step)
    assert row.calls == 2
    assert text(row.where).endswith("# logged")


def of_something_else(loop: Loop) -> None:
    loss = loop.loss()
    first = torch.autograd.grad(loss, loop.params, retain_graph=True)
    second = torch.autograd.grad(loop.model(loop.x.flip(0)).mean(), loop.params)
    loop.optimizer.zero_grad()
    loop.train(loss * (norm(first) / (1e-6 + norm(second))))


def from_another_beginning(loop: Loop) -> None:
    out = loop.model(loop.x)
    grads = torch.autograd.grad(out, loop.params, loop.x[:, :1], retain_graph=True)
    loop.kept.append(norm(grads))
    loop.optimizer.zero_grad()
    out.backward(torch.ones_like(out))
    loop.optimizer.step()


def added_to_others(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.model(loop.x + 1).mean().backward()
    loss = loop.loss()
    loop.kept.append(norm(torch.autograd.grad(loss, loop.params, retain_graph=True)))
    loop.train(loss)


def now_and_then(loop: Loop) -> None:
    loss = loop.loss()
    if next(loop.steps) == 1:
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params, retain_graph=True)))
    loop.optimizer.zero_grad()
    loop.train(loss)


def differentiated_again(loop: Loop) -> None:
    loss = loop.loss()
    grads = torch.autograd.grad(loss, loop.params, create_graph=True)
    total = sum(grad.square().sum() for grad in grads)
    loop.kept.append(norm(torch.autograd.grad(total, loop.params[:3], retain_graph=True)))
    loop.optimizer.zero_grad()
    loop.train(loss)


def of_a_value_between(loop: Loop) -> None:
    hidden = loop.model[:2](loop.x)
    loss = loop.model[2](hidden).square().mean()
    loop.kept.append(norm(torch.autograd.grad(loss, hidden, retain_graph=True)))
    loop.optimizer.zero_grad()
    loop.train(loss)


def unread(loop: Loop) -> None:
    loss = loop.loss()
    torch.autograd.grad(loss, loop.params, retain_graph=True)
    loop.optimizer.zero_grad()
    loop.train(loss)


@pytest.mark.parametrize(
    "step",
    [
        of_something_else, from_another_beginning, added_to_others, now_and_then,
        differentiated_again, of_a_value_between, unread,
    ],
)  # fmt: skip
def test_gradients_that_backward_does_not_give(step: Callable[[Loop], Any]) -> None:
    assert Loop().followed(step) == ()
