"""Layers on rows that hardly anything takes, in steps of small loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from agent.watch.profile.flow_steps import mark
from agent.watch.profile.flow_steps import of_loss as followed

BATCH, TIME, WIDTH, OUT = 16, 32, 64, 128


class Forecaster(nn.Module):
    """Forecasts from each time step."""

    def __init__(self, dropout: float = 0.0, width: int = OUT) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Sequential(
            nn.Linear(WIDTH, OUT),
            nn.LayerNorm(OUT),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(OUT, width),
        )
        self.x = torch.randn(BATCH, TIME, WIDTH)
        self.kept: list[torch.Tensor] = []

    def forward(self) -> torch.Tensor:
        states = torch.tanh(self.body(self.x)).cumsum(1)
        out: torch.Tensor = self.head(states)  # computed
        return out


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_last_step_alone_is_taken(dropout: float) -> None:
    model = Forecaster(dropout)

    def loss() -> torch.Tensor:
        last = model().view(BATCH, TIME, 8, -1)[:, -1]
        return last.square().mean()  # taken

    (row,) = followed(model, loss).unread_rows
    assert (mark(row.where), mark(row.read_where)) == ("computed", "taken")
    assert (row.products, row.rows, row.used) == (2, BATCH * TIME, BATCH)
    assert 0.7 < row.flops < 0.95, "all but the body, with the backward pass"


def test_rows_that_an_index_picks() -> None:
    model = Forecaster()
    hidden = torch.rand(BATCH, TIME) < 0.1
    at = torch.randint(0, TIME, (BATCH,))

    def masked() -> torch.Tensor:
        return model()[hidden].square().mean()

    def each() -> torch.Tensor:
        return model()[torch.arange(BATCH), at].square().mean()

    def selected() -> torch.Tensor:
        return model().index_select(1, at[:3]).square().mean()

    for loss, used in ((masked, int(hidden.sum())), (each, BATCH), (selected, 3 * BATCH)):
        (row,) = followed(model, loss).unread_rows
        assert row.used == used, loss.__name__


def test_one_slice_taken_twice_counts_once() -> None:
    model = Forecaster()

    def loss() -> torch.Tensor:
        out = model()
        return out[:, -1].square().mean() + out[:, -1].abs().mean() + out[:, 0].abs().mean()

    (row,) = followed(model, loss).unread_rows
    assert row.used == 2 * BATCH


def test_without_a_gradient() -> None:
    model, teacher = Forecaster(), Forecaster()

    def loss() -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher()[:, -1]
        return (model().mean(1) - wanted).square().mean()

    (row,) = followed(model, loss).unread_rows
    assert (row.rows, row.used) == (BATCH * TIME, BATCH)


def _turns(model: Forecaster) -> torch.Tensor:
    out = model()
    return torch.stack([out[:, at].square().mean() for at in range(TIME)]).sum()


def _columns(model: Forecaster) -> torch.Tensor:
    return model()[..., 0].square().mean()


def _halves(model: Forecaster) -> torch.Tensor:
    mean, variance = model().chunk(2, dim=-1)
    return (mean.square() + variance.square()).mean()


def _mean_too(model: Forecaster) -> torch.Tensor:
    out = model()
    return out[:, -1].square().mean() + 0.01 * out.mean().square()


def _keeping(model: Forecaster) -> torch.Tensor:
    out = model()
    model.kept.append(out.detach())
    return out[:, -1].square().mean()


def _half_of_them(model: Forecaster) -> torch.Tensor:
    return model()[:, TIME // 2 :].square().mean()


def _gathered(model: Forecaster) -> torch.Tensor:
    index = torch.randint(0, OUT, (BATCH, TIME, 1))
    return model().gather(2, index).square().mean()


def _picked_columns(model: Forecaster) -> torch.Tensor:
    return model()[..., torch.tensor([1, 5])].square().mean()


def _changed(model: Forecaster) -> torch.Tensor:
    out = model()
    with torch.no_grad():
        out[:, 0].zero_()
    return out[:, -1].square().mean()


def _read(model: Forecaster) -> torch.Tensor:
    out = model()
    out.detach().numpy().sum()
    return out[:, -1].square().mean()


def _derived(model: Forecaster) -> torch.Tensor:
    out = model()
    (slope,) = torch.autograd.grad(out, model.body.weight, torch.ones_like(out), create_graph=True)
    return out[:, -1].square().mean() + slope.square().mean()


def _given_gradients(model: Forecaster) -> torch.Tensor:
    out = model()
    out.backward(torch.randn_like(out), retain_graph=True)
    return out[:, -1].square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        _turns, _columns, _halves, _mean_too, _keeping, _half_of_them, _gathered, _picked_columns,
        _changed, _read, _derived, _given_gradients,
    ],
)  # fmt: skip
def test_rows_that_are_taken_are_none(loss: Callable[[Forecaster], torch.Tensor]) -> None:
    model = Forecaster()
    assert followed(model, lambda: loss(model)).unread_rows == ()


def test_as_many_columns_as_time_steps_are_told_apart() -> None:
    model = Forecaster(width=TIME)
    assert followed(model, lambda: model()[..., 0].square().mean()).unread_rows == ()
    (row,) = followed(model, lambda: model()[:, 0].square().mean()).unread_rows
    assert row.used == BATCH


def test_a_state_that_the_next_step_takes() -> None:
    model = Forecaster()
    states = [torch.zeros(BATCH, TIME, OUT)]

    def loss() -> torch.Tensor:
        out = model()
        value = out[:, -1].square().mean() + states[0].square().mean()
        states[0] = out.detach()
        return value

    assert followed(model, loss).unread_rows == ()


def test_a_whole_block_behind_a_residual_is_left_alone() -> None:
    """What is told is a product whose own rows are taken, not all that leads to them."""
    block = nn.TransformerEncoderLayer(WIDTH, 4, OUT, 0.0, batch_first=True)
    x = torch.randn(BATCH, TIME, WIDTH)
    assert followed(block, lambda: block(x)[:, 0].square().mean()).unread_rows == ()
