from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flatout
from flatout_train.errors import UsageError
from train.step.loops import PLAIN, network, same


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    rows = [12, 7, 15, 9, 3, 20, 8, 12, 5][:count]
    return [(torch.randn(each, 8), torch.randint(0, 3, (each,))) for each in rows]


def resumable(seed: int, **options: Any) -> Any:
    model = network(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    return flatout.train_step(
        model, F.cross_entropy, optimizer, scheduler=scheduler, ema=0.9, **PLAIN, **options
    )


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("at", [3, 4, 5])
def test_resume_is_bit_for_bit_also_within_a_group(accumulate: int, at: int) -> None:
    data = batches(9)
    straight = resumable(1, accumulate=accumulate)
    torch.manual_seed(3)
    expected = [straight(batch).item() for batch in data]

    first = resumable(1, accumulate=accumulate)
    torch.manual_seed(3)
    losses = [first(batch).item() for batch in data[:at]]
    saved = copy.deepcopy((first.state_dict(), torch.get_rng_state()))
    second = resumable(2, accumulate=accumulate)
    second.load_state_dict(saved[0])
    torch.set_rng_state(saved[1])
    assert second.pending == at % accumulate
    losses += [second(batch).item() for batch in data[at:]]
    assert losses == expected
    assert same(second.state_dict(), straight.state_dict())


def test_a_state_goes_through_a_file_with_weights_only(tmp_path: Path) -> None:
    step = resumable(1, accumulate=2)
    for batch in batches(3):
        step(batch)
    torch.save(step.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    twin = resumable(2, accumulate=2)
    twin.load_state_dict(state)
    assert same(twin.state_dict(), step.state_dict())
    assert (twin.metrics().steps, twin.metrics().calls, twin.pending) == (1, 3, 1)


def test_memory_that_runs_out_after_resuming_within_a_group() -> None:
    """The earlier batches of the group are gone: their gradient came with the state."""
    data = batches(3)
    runs = []
    for disturbed in (False, True):
        step = norms(1)
        step(data[0])
        resumed = norms(2)
        resumed.load_state_dict(copy.deepcopy(step.state_dict()))
        calls = count(resumed.model[-1], 2 if disturbed else 0)
        resumed(data[1])
        resumed(data[2])
        assert (len(calls) > 2) == disturbed
        runs.append([each.grad for each in resumed.model.parameters()])
    for found, expected in zip(*runs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def norms(seed: int) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return flatout.train_step(model, F.cross_entropy, optimizer, accumulate=3, **PLAIN)


def count(module: nn.Module, out_at: int) -> list[int]:
    """One entry for each call of the module; at one of them memory runs out."""
    calls: list[int] = []

    def hook(*_: Any) -> None:
        calls.append(1)
        if len(calls) == out_at:
            raise torch.OutOfMemoryError("here")

    module.register_forward_pre_hook(hook)
    return calls


def test_the_loss_scale_is_part_of_the_state() -> None:
    steps = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps.append(
            flatout.train_step(model, F.cross_entropy, optimizer, precision="fp16", compile=False)
        )
    assert steps[0].metrics().loss_scale == 65536.0
    input, target = batches(1)[0]
    steps[0]((input * 1e4, target))
    steps[0]((input, target))
    state = steps[0].state_dict()
    assert state["scaler"]["scale"] < 65536.0
    steps[1].load_state_dict(copy.deepcopy(state))
    assert same(steps[1].state_dict(), state)
    assert steps[1].metrics().loss_scale == state["scaler"]["scale"]
    for step in steps:
        step.close()


def test_a_state_of_other_arguments_is_refused() -> None:
    step = resumable(1)
    with pytest.raises(UsageError, match="version None"):
        step.load_state_dict({})
    other = network(1)
    plain = flatout.train_step(other, F.cross_entropy, torch.optim.SGD(other.parameters()), **PLAIN)
    with pytest.raises(UsageError, match="no scheduler, the saved one has one"):
        plain.load_state_dict(step.state_dict())
