"""Updates of optimizers, as written and under planted boosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.boosts import load as load_real
from guarded import cross_entropy, differences, everything, vectors
from planted import Program, larger, planted_update

pytestmark = pytest.mark.usefixtures("one_thread")


def breaks(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 99.0
    raise ValueError("no")


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda p: torch.optim.Adam(p, 1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.1),
    "AdamW, small steps": lambda p: torch.optim.AdamW(p, 1e-6),
    "amsgrad": lambda p: torch.optim.Adam(p, 1e-3, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
}


def with_optimizer(program: Any, kind: str, **boosts: Any) -> Program:
    run = program(**boosts)
    run.optimizer = OPTIMIZERS[kind](run.model.parameters())
    run.optimizers = [run.optimizer]
    for _ in range(3):
        run.step()
    return run


def state(run: Program) -> dict[str, Any]:
    found = everything(run.model)
    for number, parameter in enumerate(run.model.parameters()):
        for name, value in run.optimizer.state[parameter].items():
            found[f"{number} {name}"] = value.clone() if torch.is_tensor(value) else value
    for number, group in enumerate(run.optimizer.param_groups):
        found[f"group {number}"] = {k: v for k, v in group.items() if k != "params"}
    return found


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_fused_update_passes_and_leaves_no_trace(program, kind):
    compared = with_optimizer(program, kind, fused=load_real("fused-optimizer"))
    verdict = compared.check("fused")
    assert verdict.passed, verdict.reason
    assert verdict.error is not None
    steps = len(compared.losses)
    never = with_optimizer(program, kind)
    for _ in range(steps - 3):
        never.step()
    mine, theirs = state(compared), state(never)
    ids = [name for name in mine if name.endswith((" id", " version"))]
    for name in ids:
        del mine[name], theirs[name]
    assert [n for n in differences(mine, theirs) if "." not in n or "weight" in n] == []
    assert compared.losses == never.losses


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_wrong_update_is_refused(program, kind):
    run = with_optimizer(program, kind, wrong=planted_update(larger))
    verdict = run.check("wrong")
    assert not verdict.passed, verdict.reason
    assert run.optimizer.param_groups[0]["lr"] == OPTIMIZERS[kind](
        [nn.Parameter(torch.zeros(1))]
    ).param_groups[0]["lr"]  # fmt: skip


def test_an_update_that_raises_is_dropped(program):
    run = with_optimizer(program, "Adam", raises=planted_update(breaks))
    verdict = run.check("raises")
    assert (verdict.failed, verdict.reason) == (True, "ValueError: no")
    assert run.optimizer.param_groups[0]["lr"] == 1e-3


def test_one_wrong_optimizer_of_two_is_enough(program):
    def first_only(optimizer: Any) -> None:
        if optimizer is run.optimizer:
            larger(optimizer)

    run = program(wrong=planted_update(first_only))
    other = nn.Linear(20, 10)
    run.optimizers.append(torch.optim.SGD(other.parameters(), 0.1))

    def step() -> None:
        x, y = vectors()
        run.backward(cross_entropy(run.model(x) + other(x), y))
        run.update()

    assert not run.check("wrong", step).passed


def test_an_update_of_nothing_tells_nothing(program):
    run = program(wrong=planted_update(larger))
    run.optimizer.param_groups[0]["lr"] = 0.0
    rates = iter([0.0, 0.0, 0.05, 0.05])

    def step() -> None:
        run.optimizer.param_groups[0]["lr"] = next(rates)
        run.step()

    assert not run.check("wrong", step).passed
