"""A snapshot: what it puts back, into the very tensors, and what it leaves alone."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.live.snapshot import Snapshot

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, amsgrad=True),
    "rprop": torch.optim.Rprop,
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, max_iter=3),
}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, optimizer: Any, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 6, generator=generator)

        def closure(x: torch.Tensor = x) -> Any:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def everything(model: nn.Module, optimizer: Any) -> Any:
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_from_it_as_it_did_then(kind: str) -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    kept = Snapshot([model], [optimizer])
    train(model, optimizer, 3, seed=1)
    assert kept.fits()
    kept.take(3)
    before = everything(model, optimizer)
    tensors = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    for _ in range(2):  # it may be needed more than once
        train(model, optimizer, 4, seed=2)
        after = everything(model, optimizer)
        assert not same(before, after)
        assert kept.whole
        kept.put_back()
        assert same(everything(model, optimizer), before)
    assert [id(tensor) for tensor in (*model.parameters(), *model.buffers())] == tensors
    train(model, optimizer, 4, seed=2)
    assert same(everything(model, optimizer), after), "and the same steps give the same"


def test_state_that_came_later_goes() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    kept = Snapshot([model], [optimizer])
    kept.take(0)
    train(model, optimizer, 1, seed=1)
    assert optimizer.state
    kept.put_back()
    assert not optimizer.state


def test_the_rate_is_the_programs() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kept = Snapshot([model], [optimizer])
    kept.take(0)
    optimizer.param_groups[0]["lr"] = 0.01
    kept.put_back()
    assert optimizer.param_groups[0]["lr"] == 0.01


@pytest.mark.slow
def test_it_holds_no_model_and_is_not_whole_for_another() -> None:
    models, optimizers = [net()], []
    optimizers.append(torch.optim.SGD(models[0].parameters(), 0.1))
    kept = Snapshot(models, optimizers)
    kept.take(5)
    assert kept.whole
    gone = weakref.ref(models[0]), weakref.ref(next(models[0].parameters()))
    models[0] = net()
    optimizers[0] = torch.optim.SGD(models[0].parameters(), 0.1)
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert not kept.whole
    before = everything(models[0], optimizers[0])
    kept.put_back()
    assert same(everything(models[0], optimizers[0]), before)


def test_what_would_take_much_of_the_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(1000, 1000)
    kept = Snapshot([model], [])
    size = 4 * 1001 * 1000
    for spare, fits in ((4 * size, True), (4 * size - 4, False), (None, False)):
        monkeypatch.setattr("flatout_agent.live.snapshot.spare_memory", lambda spare=spare: spare)
        assert kept.fits() is fits


def test_tensors_of_other_kinds_are_not_kept() -> None:
    class Mine(torch.Tensor):
        pass

    model = nn.Linear(2, 2)
    model.register_buffer("mine", torch.ones(3).as_subclass(Mine))
    assert not Snapshot([model], []).fits()
