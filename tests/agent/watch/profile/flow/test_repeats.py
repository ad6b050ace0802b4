"""Loops whose calls need nothing of each other are told from those of layers and time steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from agent.watch.profile.flow.steps import of_two, text
from flatout_agent import wire
from flatout_agent.watch.profile.counting import flop_counter as counter
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.results import results

MANY, WIDTH = 12, 16


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.q(x) @ self.k(x).transpose(1, 2)
        return weights.softmax(-1) @ self.v(x)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(MANY))
        self.out = nn.Linear(4 * MANY, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(torch.cat([head(x) for head in self.heads], -1))  # heads


class Layers(nn.Module):
    """Each layer takes what the one before has given."""

    def __init__(self, layer: Callable[[], nn.Module], depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Channels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.rand(1, 1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = []
        for channel in range(WIDTH):  # channels
            maps.append(F.conv1d(x[:, channel : channel + 1], self.kernel, padding=1))
        return torch.cat(maps, 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), WIDTH)
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
        return state


class Written(nn.Module):
    """Each turn fills its part of one tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for at in range(x.shape[1]):  # written
            out[:, at] = torch.tanh(x[:, at]) * torch.sigmoid(x[:, at])
        return out


class Running(nn.Module):
    """Each turn reads what the one before has written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        for at in range(1, x.shape[1]):
            out[:, at] = torch.tanh(out[:, at - 1].clone() + x[:, at])
        return out


def seen(model: nn.Module, prepare: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    weight = nn.Parameter(torch.ones(WIDTH))
    optimizer = torch.optim.SGD([weight, *model.parameters()], 0.01)

    def step() -> None:
        x = prepare(torch.randn(MANY, MANY, WIDTH))
        optimizer.zero_grad()
        (model(x) * weight).square().mean().backward()
        optimizer.step()

    return of_two(Flow([model], lambda: False), [model], step)


def told(
    model: nn.Module, prepare: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
) -> tuple[wire.RepeatSeen, ...]:
    return seen(model, prepare).repeats


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    samples = []
    for sample in x:  # samples
        noisy = sample + 0.1 * torch.randn(sample.shape)
        samples.append(noisy.clamp(-3, 3) * torch.rand(1))
    return torch.stack(samples)


def test_attention_head_by_head() -> None:
    (row,) = told(Layers(Heads, 2))
    assert text(row.where).endswith("# heads")
    assert row.source.endswith("# heads")
    assert (row.left, row.modelling) == (2, True), "one for each block"
    assert {"aten.bmm", "aten._softmax"} <= set(row.operators)
    assert row.s > 0
    assert any("softmax" in text(line) for line in row.lines)
    assert 0.05 < row.kept < 0.2


def test_a_convolution_for_each_channel() -> None:
    model = nn.Sequential(Channels(), nn.Flatten(), nn.Linear(MANY * WIDTH, WIDTH))
    (row,) = told(model, lambda x: x.transpose(1, 2).contiguous())
    assert text(row.where).endswith("# channels")
    assert (row.calls, row.left) == (WIDTH, 1)
    assert row.operators == ("aten.convolution",)
    assert row.shapes == ("12x1x12, 1x1x3",)
    assert not row.own_weights


def test_augmentation_sample_by_sample() -> None:
    (row,) = told(nn.Linear(WIDTH, WIDTH), one_by_one)
    assert text(row.where).endswith("# samples")
    assert (row.calls, row.left, row.modelling) == (MANY, 1, False)


def test_parts_of_one_tensor_are_filled() -> None:
    (row,) = told(Written())
    assert text(row.where).endswith("# written")
    assert row.left == 1


ORDINARY: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: Layers(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), 24),
    "torch's layers": lambda: Layers(
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True), 12
    ),
    "time steps": Recurrent,
    "reads what was written": Running,
}


@pytest.mark.parametrize("model", ORDINARY)
def test_where_each_turn_needs_the_one_before_nothing_is_told(model: str) -> None:
    assert told(ORDINARY[model]()) == ()


def acting(x: torch.Tensor) -> torch.Tensor:
    """An environment in Python between two calls of the policy."""
    weight = torch.eye(WIDTH)
    state, states = x[0], []
    for _ in range(MANY):
        score = (state @ weight).sum().item()
        state = torch.tensor([[score] * WIDTH] * MANY).tanh()
        states.append(state)
    return torch.stack(states)


def test_what_the_program_reads_may_decide_what_comes_next() -> None:
    assert told(nn.Linear(WIDTH, WIDTH), acting) == ()


def test_micro_batches_are_no_such_loop() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    flow = Flow([model], lambda: False)
    end = counter([model], flow)
    assert end is not None
    for _ in range(2):
        for _ in range(MANY):
            model(torch.randn(4, WIDTH)).square().mean().backward()
        flow.next_step()
    end()
    found = results(flow)
    assert found is not None
    assert found.repeats == ()


def test_an_optimizer_that_loops_is_told_elsewhere() -> None:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(MANY)])
    assert told(model) == ()


class Decoder(nn.Module):
    """Most of each time step needs the one before; the last product of it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.mix = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, outs = x.new_zeros(len(x), WIDTH), []
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
            weights = torch.einsum("bd,btd->bt", self.mix(state), x).softmax(1)
            context = torch.einsum("bt,btd->bd", weights, x)
            outs.append(self.out(torch.cat([state, context], 1)))
            state = state + 0.1 * context
        return torch.stack(outs, 1)


@pytest.mark.slow
def test_a_loop_of_which_little_could_be_one_call_is_not_told() -> None:
    assert told(Decoder()) == ()


class Towers(nn.Module):
    """Layers of one tower need each other, the towers do not."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5)) for _ in range(2 * MANY)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for tower in self.towers:  # towers
            y = x
            for layer in tower:
                y = layer(y)
            total = total + y
        return total


def test_the_loop_whose_turns_need_nothing_of_each_other_is_named() -> None:
    (row,) = told(Towers())
    assert text(row.where).endswith("# towers")
    assert row.own_weights
