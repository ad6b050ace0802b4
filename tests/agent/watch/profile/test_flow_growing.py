"""Tensors that grow by concatenation, within a step and from step to step."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import nn

from flatout_agent import wire
from flatout_agent.watch.profile.flops import counter
from flatout_agent.watch.profile.flow import Flow
from flatout_agent.watch.profile.flow_results import results

STEPS, BATCH, WIDTH = 24, 16, 32


class Recurrent(nn.Module):
    """Collects its states as `gather` does."""

    def __init__(self, gather: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.gather = gather

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gather(self.cell, x)


def growing(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    state = x.new_zeros(len(x), WIDTH)
    states = x.new_zeros(len(x), 0, WIDTH)
    for at in range(x.shape[1]):
        state = cell(x[:, at], state)
        states = torch.cat([states, state.unsqueeze(1)], dim=1)  # grows
    return states


def stacking(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Under the first one's number of lines, from nothing, and on top of each other."""
    states, state = None, x.new_zeros(len(x), WIDTH)
    for part in x.unbind(1):
        state = cell(part, state)
        states = state if states is None else torch.vstack((states, state))  # grows
    assert states is not None
    return states


def with_a_helper(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def joined(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.cat((left, right), -1)  # grows

    state = x.new_zeros(len(x), WIDTH)
    states, squares = state, state
    for part in x.unbind(1):
        state = cell(part, state)
        states, squares = joined(states, state), joined(squares, state**2)
    return states + squares


def collected(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    states = [x.new_zeros(len(x), WIDTH)]
    for part in x.unbind(1):
        states.append(cell(part, states[-1]))
    return torch.cat(states, 1)


def read_at_each_length(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """As a DenseNet, or a cache of keys."""
    states = x[:, :1]
    for part in x.unbind(1):
        state = cell(part, states.mean(1))
        states = torch.cat([states, state.unsqueeze(1)], 1)
    return states


def prefixes(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    states = [x[:, :1]]
    for part in x.unbind(1):
        states.append(torch.cat([states[-1], cell(part).unsqueeze(1)], 1))
    return torch.stack([state.mean(1) for state in states])


def window(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of the last four states."""
    state, states = x[:, 0], x[:, :4]
    for part in x.unbind(1):
        state = cell(part, state)
        states = torch.cat([states[:, 1:], state.unsqueeze(1)], 1)
    return states


def a_few(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return growing(cell, x[:, :5])


def followed(
    model: nn.Module, after: Callable[[torch.Tensor], None] = lambda output: None
) -> tuple[wire.GrownSeen, ...]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    flow = Flow([model], lambda: False)
    end = counter([model], flow)
    assert end is not None
    for _ in range(2):
        output = model(torch.randn(BATCH, STEPS, WIDTH))
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
        after(output.detach())
        flow.next_step()
    end()
    assert flow.error is None
    seen = results(flow)
    assert seen is not None
    return seen.growing


def text(where: str) -> str:
    file, _, line = where.rpartition(":")
    return linecache.getline(file, int(line)).strip()


@pytest.mark.parametrize("gather", [growing, stacking])
def test_states_of_time_steps(gather: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
    (row,) = followed(Recurrent(gather))
    assert text(row.where).endswith("# grows")
    assert STEPS - 1 <= row.calls <= STEPS
    assert row.largest == BATCH * STEPS * WIDTH
    assert row.spared == pytest.approx(1 - 2 / STEPS, abs=0.02)
    assert not row.across
    assert row.s > 0


def test_two_tensors_of_one_line() -> None:
    (row,) = followed(Recurrent(with_a_helper))
    assert row.calls == 2 * STEPS
    assert row.largest == BATCH * (STEPS + 1) * WIDTH


@pytest.mark.parametrize("gather", [collected, read_at_each_length, prefixes, window, a_few])
def test_what_a_list_would_not_cure(
    gather: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    assert followed(Recurrent(gather)) == ()


class History:
    def __init__(self, rows: int) -> None:
        self.table = torch.zeros(rows, WIDTH)

    def add(self, output: torch.Tensor) -> None:
        self.table = torch.cat([self.table, output[:, -1]])  # history

    def replace(self, output: torch.Tensor) -> None:
        self.table = torch.cat([self.table, output[:, -1]])[BATCH:]


def test_a_history_that_each_step_copies() -> None:
    model = Recurrent(collected)
    history = History(200_000)
    model.gather = lambda cell, x: cell(x[:, 0]).unsqueeze(1)
    (row,) = followed(model, history.add)
    assert text(row.where).endswith("# history")
    assert row.across
    assert row.calls == 1
    assert row.largest == (200_000 + BATCH) * WIDTH
    assert row.spared > 0.99
    assert followed(model, History(200_000).replace) == (), "it does not grow"
    assert followed(model, History(BATCH).add) == (), "as new as what is added"
