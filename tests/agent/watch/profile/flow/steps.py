"""Two steps of a small loop, followed; and lines of the test that are known by their remarks."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from flatout_agent import wire
from flatout_agent.watch.profile.counting import flop_counter as counter
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.questions.gradients import WeightLooks
from flatout_agent.watch.profile.flow.results import results


def of_two(
    flow: Flow,
    models: Sequence[nn.Module],
    step: Callable[[], Any],
    steps: int = 2,
    weights: WeightLooks | None = None,
) -> wire.FlowSeen:
    """What the flow says after two such steps, or as many as given."""
    end = counter(list(models), flow)
    assert end is not None
    for _ in range(steps):
        step()
        flow.next_step()
    end()
    assert flow.error is None
    seen = results(flow, weights=weights)
    assert seen is not None
    return seen


def of_loss(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    rate: float = 0.01,
    momentum: float = 0.9,
    modelled: bool = True,
) -> wire.FlowSeen:
    """The flow of two steps that train by this loss; not modelled: its weights alone are known."""
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=momentum)
    flow = Flow([model], lambda: False)
    flow.modelled = modelled

    def step() -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    step()
    return of_two(flow, [model] if modelled else [], step)


def text(where: str | None) -> str:
    """The source of a line."""
    file, _, line = (where or "").rpartition(":")
    return linecache.getline(file, int(line)).strip()


def mark(where: str | None) -> str:
    """What the line's remark says."""
    return text(where).rpartition("# ")[2]
