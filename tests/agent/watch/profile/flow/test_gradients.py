"""Gradients of parameters that nothing changes: which ones, the line, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from agent.watch.profile.flow.steps import of_two, text
from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.questions import gradients
from flatout_agent.watch.profile.flow.questions.gradients import WeightLooks

WIDTH = 64


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.backbone = Backbone()
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.backbone(self.embed(x))
        return self.head(features)


def followed(
    model: nn.Module, step: Callable[[], Any], before: Callable[[], Any] = lambda: None
) -> wire.GradientsSeen | None:
    step()
    weights = WeightLooks([model])
    before()
    flow = Flow([model], lambda: False)
    return of_two(flow, [model], step, weights=weights).gradients


def training(
    model: Model, *parts: nn.Module, after: Callable[[], Any] = lambda: None
) -> Callable[[], None]:
    """A step that trains these parts."""
    trained = [weight for part in parts for weight in part.parameters()]
    optimizer = torch.optim.SGD(trained, 0.01)
    x = torch.randn(256, WIDTH)

    def step() -> None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        after()
        optimizer.step()

    return step


def test_a_backbone_that_is_not_trained() -> None:
    model = Model()
    row = followed(model, training(model, model.head))
    assert row is not None
    assert (row.what, row.tensors) == ("Backbone", 6)
    assert text(row.where) == "features = self.backbone(self.embed(x))"
    assert row.after_trained, "what lies before it requires a gradient too"
    # of 3 * 2 products of the backbone and the layer before it, 3 + 2 are for such gradients
    assert 0.4 < row.flops < 0.65


def test_only_its_own_gradients_where_something_before_it_is_trained() -> None:
    model = Model()
    row = followed(model, training(model, model.embed, model.head))
    assert row is not None
    assert (row.what, row.tensors, row.after_trained) == ("Backbone", 4, True)
    assert 0.15 < row.flops < 0.35, "the gradients of its inputs are needed"


def test_gradients_that_pile_up() -> None:
    model = Model()
    model.embed.requires_grad_(False)
    row = followed(model, training(model, model.head))  # only the optimizer's are set to zero
    assert row is not None
    assert (row.what, row.tensors, row.after_trained) == ("Backbone", 4, False)


def whole(model: Model) -> list[nn.Module]:
    return [model.embed, model.backbone, model.head]


def test_a_model_that_is_trained_or_frozen() -> None:
    model = Model()
    assert followed(model, training(model, *whole(model))) is None
    model.backbone.requires_grad_(False)
    assert followed(model, training(model, model.embed, model.head)) is None


def test_an_optimizer_that_has_not_stepped_yet() -> None:
    model = Model()
    rare = torch.optim.Adam([*model.backbone.parameters(), *model.embed.parameters()])
    assert followed(model, training(model, model.head)) is None
    assert rare.param_groups


def descend(model: Model) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            if weight.grad is not None:
                weight -= 0.01 * weight.grad


def test_weights_that_the_program_changes_itself() -> None:
    model = Model()
    assert followed(model, training(model, model.head, after=lambda: descend(model))) is None


def test_weights_that_it_changes_now_and_then() -> None:
    model = Model()
    step = training(model, model.head)
    assert followed(model, step, before=lambda: descend(model)) is None


def test_gradients_that_are_read() -> None:
    model = Model()
    norms: list[float] = []

    def note() -> None:
        norms.append(sum(float(w.grad.norm()) for w in model.parameters() if w.grad is not None))

    assert followed(model, training(model, model.head, after=note)) is None
    assert norms


def test_gradients_of_inputs_are_needed() -> None:
    """As for adversarial examples: the model is fixed, its input is what changes."""
    model = Model()
    x = torch.zeros(256, WIDTH, requires_grad=True)
    optimizer = torch.optim.SGD([x], 0.1)

    def step() -> None:
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()

    row = followed(model, step)
    assert row is not None
    assert row.flops == pytest.approx(1 / 3, abs=0.05), "the gradients of weights alone"


def test_the_other_network_of_two() -> None:
    generator, critic = Model(), Model()
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.Adam(critic.parameters())
    z = torch.randn(64, WIDTH)
    lift = nn.Linear(4, WIDTH).requires_grad_(False)

    def step() -> None:
        second.zero_grad()
        critic(lift(generator(z).detach())).mean().backward()
        second.step()
        first.zero_grad()
        critic(lift(generator(z))).mean().backward()
        first.step()

    assert followed(nn.ModuleList([generator, critic]), step) is None


def test_a_usual_loop_is_not_searched_for_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    looks = []
    monkeypatch.setattr(gradients.gc, "get_objects", lambda: looks.append(1) or [optimizer])

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()

    assert followed(model, step) is None
    assert looks == []
