"""Modules and derivatives that a step computes again on the same values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agent.watch.profile.flow.test_follow import WIDTH, Loop, text
from flatout_agent import wire


def rows(*layers: nn.Module, loop: Loop) -> tuple[wire.AgainSeen, ...]:
    loop.net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), *layers, nn.Linear(4 * WIDTH, WIDTH))
    return loop.followed().again


def twice(loop: Loop) -> float:
    first = loop.net(loop.x)  # the first
    again = loop.net(loop.x)  # again
    return (first + again).sum().item()


@pytest.mark.slow
def test_a_second_call_that_gives_the_same() -> None:
    (row,) = rows(nn.Tanh(), loop=Loop(twice))
    assert (row.what, row.calls, row.repeated) == ("Sequential()", 2, 1)
    assert text(row.where).endswith("# again")
    assert [text(line).partition("# ")[2] for line in row.lines] == ["the first", "again"]
    assert row.flops > 0


def test_dropout_and_running_statistics_are_not_the_same() -> None:
    assert rows(nn.Dropout(0.1), loop=Loop(twice)) == ()
    assert rows(nn.BatchNorm1d(4 * WIDTH), loop=Loop(twice)) == ()


def test_another_input_number_or_weight_is_not_the_same() -> None:
    class Scaled(nn.Linear):
        by = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * self.by)

    def scaled(loop: Loop) -> float:
        loop.net[0].by = 1.0
        first = loop.net(loop.x)
        loop.net[0].by = 2.0
        return (first + loop.net(loop.x)).sum().item()

    def updated(loop: Loop) -> float:
        first = loop.net(loop.x)
        with torch.no_grad():
            loop.net[0].weight.mul_(0.99)
        return (first + loop.net(loop.x)).sum().item()

    def written(loop: Loop) -> float:
        array = loop.x.numpy()
        first = loop.net(loop.x)
        array[:] = 1.0
        return (first + loop.net(loop.x)).sum().item()

    for extra in (scaled, updated, written):
        loop = Loop(extra)
        loop.net = nn.Sequential(Scaled(WIDTH, 8 * WIDTH), nn.Tanh())
        assert loop.followed().again == (), extra.__name__
    halves = Loop(lambda loop: (loop.net(loop.x[:128]) - loop.net(loop.x[128:])).sum().item())
    assert rows(loop=halves) == ()


def test_a_discriminator_gets_its_input_detached_once() -> None:
    def adversarial(loop: Loop) -> None:
        made = loop.output
        loop.net(made).mean().backward(retain_graph=True)
        loop.net(made.detach()).mean().backward()

    assert rows(loop=Loop(adversarial)) == ()


def test_derivatives_one_by_one() -> None:
    def derivative(loop: Loop, points: torch.Tensor, column: int) -> torch.Tensor:
        values = loop.net(points)  # anew
        ones = torch.ones_like(values)
        return torch.autograd.grad(values, points, ones, create_graph=True)[0][:, column]

    def residual(loop: Loop) -> None:
        points = torch.rand(256, WIDTH, requires_grad=True)
        total = derivative(loop, points, 0) + derivative(loop, points, 1)
        (total + derivative(loop, points, 2)).square().mean().backward()

    (row,) = rows(nn.Tanh(), loop=Loop(residual))
    assert (row.calls, row.repeated, row.gradients) == (3, 2, 2)
    assert text(row.where).endswith("# anew")


def test_derivatives_of_one_result_again() -> None:
    def residual(loop: Loop) -> None:
        points = torch.rand(256, WIDTH, requires_grad=True)
        values = loop.net(points).sum()
        parts = [
            torch.autograd.grad(values, points, create_graph=True)[0][:, column]  # again
            for column in range(3)
        ]
        sum(parts).square().mean().backward()

    (row,) = rows(nn.Tanh(), loop=Loop(residual))
    assert (row.what, row.calls, row.repeated) == ("autograd.grad", 3, 2)
    assert text(row.where).endswith("# again")


def test_parts_without_gradients_first_save_memory() -> None:
    def cached(loop: Loop) -> None:
        parts = loop.x.split(64)
        with torch.no_grad():
            outputs = torch.cat([loop.net(part) for part in parts])
        outputs.requires_grad_()
        outputs.square().mean().backward()
        for part, gradient in zip(parts, outputs.grad.split(64), strict=True):
            loop.net(part).backward(gradient)

    def metric(loop: Loop) -> float:
        with torch.no_grad():
            before = loop.net(loop.x).square().mean().item()
        loop.net(loop.x).square().mean().backward()
        return before

    assert rows(nn.Tanh(), loop=Loop(cached)) == ()
    (row,) = rows(nn.Tanh(), loop=Loop(metric))
    assert (row.calls, row.repeated) == (2, 1)


def test_derivatives_of_another_network_have_a_row_of_their_own() -> None:
    other = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, 1))

    def both(loop: Loop) -> None:
        repeated = twice(loop)
        points = torch.rand(256, WIDTH, requires_grad=True)
        values = other(points).sum()
        slopes = [torch.autograd.grad(values, points, create_graph=True)[0] for _ in range(2)]
        (repeated * sum(slopes)).square().mean().backward()

    seen = {row.what: row for row in rows(nn.Tanh(), loop=Loop(both))}
    assert seen["Sequential()"].gradients == 0
    assert seen["autograd.grad"].calls == 2
