"""Gradients of a part that is trained by another pass: the part, its line, and what they cost."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent import wire
from flatout_agent.watch.profile.flops import counter
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.results import results
from flatout_agent.watch.profile.flow.weights import WeightLooks

WIDTH = 64


class Generator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        )


class Critic(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


class Game:
    """Two networks against each other, as a script trains them."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.generator, self.critic = Generator(), Critic()
        self.first = torch.optim.Adam(self.generator.parameters(), 1e-4)
        self.second = torch.optim.Adam(self.critic.parameters(), 1e-4)
        self.z = torch.randn(256, WIDTH)
        self.real = torch.randn(256, WIDTH)
        self.detach, self.to_none = options.get("detach", False), options.get("to_none", True)
        self.between: Callable[[], Any] = lambda: None

    def fakes(self) -> torch.Tensor:
        return self.generator(self.z)

    def critic_step(self) -> None:
        self.second.zero_grad(set_to_none=self.to_none)
        fakes = self.fakes().detach() if self.detach else self.fakes()
        (self.critic(fakes).mean() - self.critic(self.real).mean()).backward()
        self.between()
        self.second.step()

    def generator_step(self) -> None:
        self.first.zero_grad(set_to_none=self.to_none)
        self.critic.requires_grad_(False)
        (-self.critic(self.fakes()).mean()).backward()
        self.critic.requires_grad_(True)
        self.first.step()

    def step(self) -> None:
        self.critic_step()
        self.generator_step()

    def followed(self) -> tuple[wire.GradientsSeen, ...]:
        return followed([self.generator, self.critic], self.step)


def followed(models: list[nn.Module], step: Callable[[], Any]) -> tuple[wire.GradientsSeen, ...]:
    step()
    weights = WeightLooks(models)
    flow = Flow(models, lambda: False)
    end = counter(models, flow)
    assert end is not None
    for _ in range(2):
        step()
        flow.next_step()
    end()
    assert flow.error is None
    seen = results(flow, weights=weights)
    assert seen is not None
    assert all(row.dropped for row in seen.gradients)
    return seen.gradients


def text(where: str | None) -> str:
    file, _, line = (where or "").rpartition(":")
    return linecache.getline(file, int(line)).strip()


@pytest.mark.parametrize("to_none", [True, False])
def test_a_critics_step_goes_back_through_the_generator(to_none: bool) -> None:
    (row,) = Game(to_none=to_none).followed()
    assert row.what == "Generator"
    assert text(row.where) == "return self.generator(self.z)"
    assert text(row.backward_where).startswith("(self.critic(fakes).mean()")
    # Of the step's 20 large products these are 3 of the generator's, and 1 of the critic's.
    assert 0.12 < row.flops < 0.28


def test_the_other_way_round() -> None:
    game = Game()

    def step() -> None:
        game.first.zero_grad()
        (-game.critic(game.generator(game.z)).mean()).backward()  # another call, which is needed
        game.first.step()
        game.critic_step()

    (row,) = followed([game.generator, game.critic], step)
    assert row.what == "Generator"
    assert text(row.where) == "return self.generator(self.z)"


def test_fakes_that_are_detached() -> None:
    assert Game(detach=True).followed() == ()


def test_gradients_that_are_read_before_they_are_dropped() -> None:
    game = Game()
    norms: list[float] = []

    def note() -> None:
        norms.extend(
            float(w.grad.norm()) for w in game.generator.parameters() if w.grad is not None
        )

    game.between = note
    assert game.followed() == ()
    assert norms


def test_a_part_that_the_pass_must_go_through() -> None:
    """An actor's loss goes through a critic whose own gradients it does not use."""
    actor, critic = Generator(), Critic()
    first = torch.optim.SGD(actor.parameters(), 0.01)
    second = torch.optim.SGD(critic.parameters(), 0.01)
    x = torch.randn(128, WIDTH)

    def step() -> None:
        second.zero_grad()
        critic(x).square().mean().backward()
        second.step()
        first.zero_grad()
        critic(actor(x)).mean().backward()
        first.step()

    assert followed([actor, critic], step) == ()


def test_a_pass_of_which_nothing_is_used() -> None:
    """A step that is left out, as for a loss that jumps."""
    model = Generator()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(128, WIDTH)
    turns = iter(range(10))

    def step() -> None:
        model(x).square().mean().backward()
        if next(turns) != 1:
            optimizer.step()
        optimizer.zero_grad()

    assert followed([model], step) == ()


def test_gradients_of_both_passes_are_added() -> None:
    encoder, head = Generator(), Critic()
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], 0.01)
    x = torch.randn(128, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        head(encoder(x)).mean().backward()
        encoder(x).square().mean().backward()
        optimizer.step()

    assert followed([encoder, head], step) == ()
