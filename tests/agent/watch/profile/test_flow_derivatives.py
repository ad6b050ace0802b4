"""Derivatives that are computed twice, and create_graph=True that nothing goes through."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from agent.watch.profile.flow_steps import of_two
from flatout_agent import wire
from flatout_agent.watch.profile.flow import Flow

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

    def followed(self, step: Callable[[], Any]) -> wire.FlowSeen:
        step()
        return of_two(Flow([self.model], lambda: False), [self.model], step)


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

    (row,) = loop.followed(step).derived_again
    assert row.calls == 1
    assert "torch.autograd.grad(loss" in text(row.where)
    assert text(row.other_where) == "loss.backward()"
    assert row.s > 0


def test_gradients_that_backward_gave_before() -> None:
    loop = Loop()

    def step() -> None:
        loss = loop.loss()
        loop.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params)))
        loop.optimizer.step()

    (row,) = loop.followed(step).derived_again
    assert text(row.where).startswith("loop.kept.append")


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

    seen = loop.followed(step)
    (row,) = seen.again
    assert (row.what, row.calls) == ("autograd.grad", 2)
    assert text(row.where).startswith("(grad,) =")
    assert (seen.derived_again, seen.graphs_unused) == ((), ())


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

    seen = loop.followed(step)
    (row,) = seen.derived_again
    assert row.calls == 2
    assert text(row.where).endswith("# logged")
    assert seen.again == ()


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

    assert loop.followed(step).derived_again == ()


def test_from_another_beginning() -> None:
    loop = Loop()

    def step() -> None:
        out = loop.model(loop.x)
        grads = torch.autograd.grad(out, loop.params, loop.x[:, :1], retain_graph=True)
        loop.kept.append(norm(grads))
        loop.optimizer.zero_grad()
        out.backward(torch.ones_like(out))
        loop.optimizer.step()

    assert loop.followed(step).derived_again == ()


def test_gradients_that_are_added_to_others() -> None:
    loop = Loop()

    def step() -> None:
        loop.optimizer.zero_grad()
        loop.model(loop.x + 1).mean().backward()
        loss = loop.loss()
        loop.kept.append(norm(torch.autograd.grad(loss, loop.params, retain_graph=True)))
        loss.backward()
        loop.optimizer.step()

    assert loop.followed(step).derived_again == ()


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

    assert loop.followed(step).derived_again == ()


def adapted(loop: Loop, create_graph: bool) -> list[torch.Tensor]:
    """Weights after three steps of an inner loop."""
    weights = loop.params
    names = [name for name, _ in loop.model.named_parameters()]
    for _ in range(3):
        named = dict(zip(names, weights, strict=True))
        out = torch.func.functional_call(loop.model, named, (loop.x,))
        grads = torch.autograd.grad(out.square().mean(), weights, create_graph=create_graph)
        weights = [w - 0.1 * grad for w, grad in zip(weights, grads, strict=True)]
    return weights


def test_a_first_order_method_with_a_graph() -> None:
    loop = Loop()

    def step() -> None:
        fast = adapted(loop, create_graph=True)
        for weight, last in zip(loop.params, fast, strict=True):
            weight.grad = (weight - last).detach()
        loop.optimizer.step()

    (row,) = loop.followed(step).graphs_unused
    assert (row.calls, row.gives) == (3, True)
    assert row.operators >= 3 * 5
    assert "create_graph=create_graph" in text(row.where)


def test_a_second_order_method() -> None:
    loop = Loop()

    def step() -> None:
        fast = adapted(loop, create_graph=True)
        named = dict(zip([n for n, _ in loop.model.named_parameters()], fast, strict=True))
        loss = torch.func.functional_call(loop.model, named, (loop.x,)).square().mean()
        loop.optimizer.zero_grad()
        loss.backward()
        loop.optimizer.step()

    assert loop.followed(step).graphs_unused == ()


def test_without_a_graph() -> None:
    loop = Loop()

    def step() -> None:
        fast = adapted(loop, create_graph=False)
        for weight, last in zip(loop.params, fast, strict=True):
            weight.grad = (weight - last).detach()
        loop.optimizer.step()

    assert loop.followed(step).graphs_unused == ()


@pytest.mark.filterwarnings("ignore:Using backward.*create_graph=True")
def test_backward_with_a_graph() -> None:
    loop = Loop()

    def step() -> None:
        loop.optimizer.zero_grad()
        loop.loss().backward(create_graph=True)
        loop.optimizer.step()

    (row,) = loop.followed(step).graphs_unused
    assert not row.gives
    assert text(row.where) == "loop.loss().backward(create_graph=True)"


@pytest.mark.filterwarnings("ignore:Using backward.*create_graph=True")
def test_backward_for_a_curvature() -> None:
    loop = Loop()

    def step() -> None:
        loop.optimizer.zero_grad()
        loop.loss().backward(create_graph=True)
        grads = [w.grad for w in loop.params if w.grad is not None]
        loop.kept.append(norm(torch.autograd.grad(sum(g.sum() for g in grads), loop.params)))
        for weight in loop.params:
            weight.grad = weight.grad.detach() if weight.grad is not None else None
        loop.optimizer.step()

    assert loop.followed(step).graphs_unused == ()


def test_a_gradient_penalty() -> None:
    loop = Loop()

    def step() -> None:
        x = loop.x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(loop.model(x).sum(), x, create_graph=True)
        loop.optimizer.zero_grad()
        (loop.loss() + (grad.norm(dim=1) - 1).square().mean()).backward()
        loop.optimizer.step()

    assert loop.followed(step).graphs_unused == ()


def test_a_gradient_seen_by_a_hook_only() -> None:
    """What is differentiated is inside of the pass, not one of its results."""
    loop = Loop()

    def step() -> None:
        hidden = loop.model[1](loop.model[0](loop.x))
        caught: list[torch.Tensor] = []
        hidden.register_hook(caught.append)
        out = loop.model[2](hidden).square().mean()
        grads = torch.autograd.grad(out, loop.params, create_graph=True)
        loop.optimizer.zero_grad()
        (loop.loss() + caught[0].square().sum()).backward()
        loop.kept.append(norm(grads))
        loop.optimizer.step()

    assert loop.followed(step).graphs_unused == ()


def test_graphs_that_are_kept_may_be_used_later() -> None:
    loop = Loop()

    def step() -> None:
        loss = loop.loss()
        loop.kept.append(torch.autograd.grad(loss, loop.params, create_graph=True))
        loop.optimizer.zero_grad()
        loss.backward()
        loop.optimizer.step()

    assert loop.followed(step).graphs_unused == ()


def test_functions_of_torch_that_ask_for_it_themselves() -> None:
    loop = Loop()

    def squares(weight: torch.Tensor) -> torch.Tensor:
        return (loop.x @ weight).square().mean()

    def step() -> None:
        loop.kept.append(float(torch.func.grad(squares)(loop.params[0].detach()).norm()))
        loop.optimizer.zero_grad()
        loop.loss().backward()
        loop.optimizer.step()

    assert loop.followed(step).graphs_unused == ()
