from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flatout_train.step.buffers import Buffers


class Model(nn.Module):
    """Buffers of several kinds: a mask that stays, statistics, one that is None, one replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("mask", torch.ones(4, 4))
        self.register_buffer("nothing", None)
        self.register_buffer("last", torch.zeros(2))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.last = value[0, :2].clone()
        return self.norm(value)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("settled", [False, True])
def test_restored_as_they_were_kept(settled: bool) -> None:
    model = Model()
    buffers = Buffers(model)
    if settled:
        buffers.keep()
        model(torch.randn(5, 3))
        buffers.settle()
    buffers.keep()
    before = copy.deepcopy(model.state_dict())
    model(torch.randn(5, 3))
    assert not same(model.state_dict(), before)
    buffers.restore()
    assert same(model.state_dict(), before)


def test_after_the_first_pass_only_what_it_changed_is_kept() -> None:
    model = Model()
    buffers = Buffers(model)
    buffers.keep()
    model(torch.randn(5, 3))
    buffers.settle()
    assert not buffers.none
    model.mask.zero_()
    buffers.restore()
    assert not model.mask.any()


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_restored_where_a_flag_on_the_device_says_so(bad: float) -> None:
    model = Model()
    buffers = Buffers(model)
    buffers.keep()
    before = copy.deepcopy(model.state_dict())
    model(torch.full((5, 3), float("nan")) if bad else torch.randn(5, 3))
    after = copy.deepcopy(model.state_dict())
    buffers.restore_where(torch.tensor(bad))
    assert same(model.state_dict(), before if bad else after)


def test_models_without_changing_buffers_cost_nothing() -> None:
    assert Buffers(nn.Linear(2, 2)).none
    model = nn.Module()
    model.register_buffer("mask", torch.ones(3))
    buffers = Buffers(model)
    assert not buffers.none
    buffers.keep()
    buffers.settle()
    assert buffers.none
    buffers.keep()
    buffers.restore()
    buffers.restore_where(torch.tensor(1.0))
