"""Gradients of real processes, averaged: of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranked

pytestmark = pytest.mark.slow
PROGRAM = """
import json, sys
import torch
from flatout_agent import wire
from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.reducer import Reducer

rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
group = RankGroup(wire.RankOrders(rank, size, store, 0, timeout_s=60))
reducer = Reducer(group)
channels_last = torch.empty(8, 3, 5, 5).to(memory_format=torch.channels_last)
kinds = {
    "plain": torch.empty(300, 200),
    "large": torch.empty(2**20 + 3, 2),
    "large transposed": torch.empty(700_003, 3).t(),
    "channels last": channels_last,
    "scalar": torch.empty(()),
    "nothing": torch.empty(0, 4),
    "bfloat16": torch.empty(70_000, dtype=torch.bfloat16),
    "complex": torch.empty(40_000, dtype=torch.complex64),
    "double": torch.empty(20_000, dtype=torch.float64),
    "many": torch.empty(2**20),
    "more": torch.empty(2**20),
    "rank 0 only": torch.empty(500),
    "never": torch.empty(500),
    "gone in rank 0": torch.empty(700),
    "now and then": torch.empty(90_000),
}
parameters = {name: torch.nn.Parameter(each) for name, each in kinds.items()}
reducer.add(parameters.values())
if rank == 0:
    del parameters["gone in rank 0"]
dice = torch.Generator().manual_seed(1)
wrong = []

def gradient_of(name, like, which):
    return torch.randn(like.shape, generator=dice).mul(3).to(like.dtype) + which

def has(name, which, step):
    if name == "now and then":
        return step % 2 == 0
    return name != "never" and (name != "rank 0 only" or which == 0) and (
        name != "gone in rank 0" or which > 0)

for step in range(3):
    wanted, kept = {}, {}
    for name, like in kinds.items():
        drawn = [gradient_of(name, like, which) for which in range(size)]
        given = [each for which, each in enumerate(drawn) if has(name, which, step)]
        parameter = parameters.get(name)
        if given:
            wanted[name] = sum(each.to(torch.complex64) for each in given) / size
        elif parameter is not None and parameter.grad is not None:
            kept[name] = parameter.grad.clone()
        if has(name, rank, step) and parameter is not None:
            grad = torch.empty_like(parameter).copy_(drawn[rank])
            parameter.grad = grad
        elif has(name, rank, step) or given:
            if parameter is not None:
                parameter.grad = None
    reducer.after_backward()
    for name, parameter in parameters.items():
        if name in wanted:
            bound = 2e-2 if parameter.dtype.itemsize == 2 else 1e-5
            got = parameter.grad.to(torch.complex64)
            if not torch.allclose(got, wanted[name], rtol=bound, atol=bound):
                wrong.append([step, name, float((got - wanted[name]).abs().max())])
            if parameter.grad.stride() != parameter.stride():
                wrong.append([step, name, "strides"])
        elif name in kept and not torch.equal(parameter.grad, kept[name]):
            wrong.append([step, name, "changed"])
        elif name not in kept and name not in wanted and parameter.grad is not None:
            wrong.append([step, name, "appeared"])
shared = [name for name in kinds if name != "gone in rank 0" and parameters[name].grad is not None]
figures = [float(torch.view_as_real(g).sum() if g.is_complex() else g.double().sum())
           for g in (parameters[name].grad for name in shared)]
if not group.equal(*figures):
    wrong.append("the ranks differ")
print(json.dumps({"wrong": wrong}))
group.agreed(True)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [2, 3])
def test_every_kind_of_gradient_is_averaged(size: int, tmp_path: Path) -> None:
    assert ranked.exchanging(tmp_path, PROGRAM, size) == [{"wrong": []}] * size
