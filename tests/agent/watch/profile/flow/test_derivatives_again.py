"""Derivatives that `backward` computes, too."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from agent.watch.profile.flow.steps import of_two
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

    def loss(self) -> torch.Tensor:
        return self.model(self.x).square().mean()

    def followed(self, step: Callable[[], Any]) -> tuple[wire.AgainSeen, ...]:
        step()
        return of_two(Flow([self.model], lambda: False), [self.model], step).again


def text(where: str | None) -> str:
    file, _, line = (where or "").rpartition(":")
    return linecache.getline(file, int(line)).strip()


def norm(grads: Any) -> float:
    return float(torch.stack([grad.detach().norm() for grad in grads]).norm())


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("part", [slice(None), slice(2, None)])
def test_gradients_that_backward_gives_too(to_none: bool, part: slice) -> None:
    loop = Loop()

    def step() -> None:
        loss = loop.loss()
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params[part], retain_graph=True)))
        loop.optimizer.zero_grad(set_to_none=to_none)
        loss.backward()
        loop.optimizer.step()

    (row,) = loop.followed(step)
    assert (row.what, row.calls) == ("autograd.grad", 1)
    assert "torch.autograd.grad(loss" in text(row.where)
    assert text(row.backward_where) == "loss.backward()"
    assert row.s > 0


def test_gradients_that_backward_gave_before() -> None:
    loop = Loop()

    def step() -> None:
        loss = loop.loss()
        loop.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params)))
        loop.optimizer.step()

    (row,) = loop.followed(step)
    assert text(row.where).startswith("loop.kept.append")
    assert text(row.backward_where).startswith("loss.backward(")


def test_two_calls_for_the_same() -> None:
    loop = Loop()

    def slope(u: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        return grad

    def step() -> None:
        x = loop.x.clone().requires_grad_()
        u = loop.model(x)
        loss = slope(u, x).square().mean() + slope(u, x).sum(1).square().mean()
        loop.optimizer.zero_grad()
        loss.backward()
        loop.optimizer.step()

    (row,) = loop.followed(step)
    assert (row.what, row.calls, row.backward_where) == ("autograd.grad", 2, None)
    assert text(row.where).startswith("(grad,) =")


def test_calls_that_backward_repeats_are_told_once() -> None:
    loop = Loop()

    def logged(loss: torch.Tensor) -> float:
        return norm(torch.autograd.grad(loss, loop.params, retain_graph=True))  # logged

    def step() -> None:
        loss = loop.loss()
        loop.kept.append(logged(loss) + logged(loss))
        loop.optimizer.zero_grad()
        loss.backward()
        loop.optimizer.step()

    (row,) = loop.followed(step)
    assert row.calls == 2
    assert text(row.where).endswith("# logged")
    assert text(row.backward_where) == "loss.backward()"


def test_they_are_told_beside_a_module_that_is_called_again() -> None:
    loop = Loop()

    def step() -> None:
        loss = loop.loss() + loop.model(loop.x).mean()
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params, retain_graph=True)))
        loop.optimizer.zero_grad()
        loss.backward()
        loop.optimizer.step()

    rows = {row.what: row for row in loop.followed(step)}
    assert set(rows) == {"autograd.grad", "Sequential()"}
    assert rows["Sequential()"].gradients == 0


def test_gradients_of_something_else() -> None:
    loop = Loop()
    other = torch.randn(128, WIDTH)

    def step() -> None:
        loss = loop.loss()
        first = torch.autograd.grad(loss, loop.params, retain_graph=True)
        second = torch.autograd.grad(loop.model(other).mean(), loop.params)
        weight = norm(first) / (1e-6 + norm(second))
        loop.optimizer.zero_grad()
        (loss * weight).backward()
        loop.optimizer.step()

    assert loop.followed(step) == ()


def test_from_another_beginning() -> None:
    loop = Loop()

    def step() -> None:
        out = loop.model(loop.x)
        grads = torch.autograd.grad(out, loop.params, loop.x[:, :1], retain_graph=True)
        loop.kept.append(norm(grads))
        loop.optimizer.zero_grad()
        out.backward(torch.ones_like(out))
        loop.optimizer.step()

    assert loop.followed(step) == ()


def test_gradients_that_are_added_to_others() -> None:
    loop = Loop()

    def step() -> None:
        loop.optimizer.zero_grad()
        loop.model(loop.x + 1).mean().backward()
        loss = loop.loss()
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params, retain_graph=True)))
        loss.backward()
        loop.optimizer.step()

    assert loop.followed(step) == ()


def test_only_now_and_then() -> None:
    loop = Loop()
    turns = iter(range(10))

    def step() -> None:
        loss = loop.loss()
        if next(turns) == 1:
            loop.kept.append(norm(torch.autograd.grad(loss, loop.params, retain_graph=True)))
        loop.optimizer.zero_grad()
        loss.backward()
        loop.optimizer.step()

    assert loop.followed(step) == ()
