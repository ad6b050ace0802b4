"""The lines by which a program without an optimizer changes its weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from flatout_agent.job import Job
from flatout_agent.watch.profile import updates
from flatout_agent.watch.profile.counting import flop_counter as counter
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.results import results
from flatout_agent.watch.profile.updates import UpdateLines


def line(mark: str) -> str:
    """Of this file, as reports name it."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return f"{os.path.relpath(__file__)}:{number}"


@torch.no_grad()
def update(weights: list[torch.Tensor], averages: list[torch.Tensor]) -> None:
    for weight, average in zip(weights, averages, strict=True):
        average.mul_(0.9).add_(weight.grad)  # AVERAGE
        weight.sub_(0.1 * average)  # CHANGE
        weight.grad = None


def test_the_lines_of_a_function_under_no_grad() -> None:
    model, job = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), Job()
    weights = list(model.parameters())
    averages = [torch.zeros_like(weight) for weight in weights]
    watched = UpdateLines.start(lambda: weights, job.inside_backward)
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    update(weights, averages)
    print(loss.item())  # no part of the update
    seen = watched.end()
    assert seen is not None
    assert (seen.where, seen.function) == (line("CHANGE"), "update")
    assert seen.lines == (line("AVERAGE"), line("CHANGE"))
    assert seen.tensors == 4
    assert seen.operators == 4 * 4


def test_weights_that_are_made_anew() -> None:
    job = Job()
    weights = [torch.randn(4, 4).requires_grad_() for _ in range(3)]
    watched = UpdateLines.start(lambda: weights, job.inside_backward)
    x = torch.randn(2, 4)
    for weight in weights:
        x = torch.tanh(x @ weight)
    gradients = torch.autograd.grad(x.sum(), weights)
    pairs = zip(weights, gradients, strict=True)
    weights = [(w - 0.1 * g).detach().requires_grad_() for w, g in pairs]  # ANEW
    seen = watched.end()
    assert seen is not None
    assert (seen.where, seen.tensors) == (line("ANEW"), 3)
    assert seen.lines == (line("ANEW"),)


def test_a_step_without_a_change_has_no_lines() -> None:
    model, job = nn.Linear(4, 1), Job()
    watched = UpdateLines.start(lambda: list(model.parameters()), job.inside_backward)
    model(torch.randn(3, 4)).sum().backward()
    assert watched.end() is None


def test_what_it_leaves_behind() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    watched = UpdateLines.start(list, lambda: False)
    watched.end()
    assert _get_current_dispatch_mode_stack() == []


def test_of_a_step_of_very_many_operators_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "MOST_OPERATORS", 10)
    weight = torch.zeros(2)
    watched = UpdateLines.start(lambda: [weight], lambda: False)
    for _ in range(20):
        weight.add_(1)
    assert watched._operators == []
    assert watched.end() is None


def test_the_flow_does_not_take_our_own_looks_for_the_programs() -> None:
    model, job = nn.Linear(64, 64), Job()
    weights, averages = list(model.parameters()), [torch.zeros(64, 64), torch.zeros(64)]
    flow = Flow([model], lambda: False)
    end = counter([model], flow)
    assert end is not None
    for _ in range(2):
        watched = UpdateLines.start(lambda: weights, job.inside_backward)
        x = torch.randn(64, 64)
        futile = (x @ x).softmax(1)  # FUTILE
        model(x).square().mean().backward()
        del futile
        update(weights, averages)
        assert watched.end() is not None
        flow.next_step()
    end()
    seen = results(flow, by_hand=True)
    assert seen is not None
    assert [row.where for row in seen.unread] == [line("FUTILE")]
