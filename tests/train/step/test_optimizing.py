"""optimizing: torch's fused kernels against its plain loops, with whatever was there before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout_train.step import optimizing


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    for number in range(start, start + steps):
        x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_loading_a_plain_checkpoint_in_the_middle() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 3)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 3, start=3)
    straight = weights(model)
    optimizing.fuse(optimizer)
    train(model, optimizer, 6, start=6)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    assert optimizer.param_groups[0]["fused"]
    train(model, optimizer, 3, start=3)
    torch.testing.assert_close(weights(model), straight, rtol=1e-4, atol=1e-6)


def test_gradients_are_looked_at_in_the_first_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizing.fuse(optimizer)
    looked: list[int] = []
    monkeypatch.setattr(
        optimizing._StepSwitch, "_align_gradients", lambda self: looked.append(self.steps)
    )
    train(model, optimizer, 8)
    assert looked == [1, 2, 3]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, fused=False), "itself"),
        (lambda p: torch.optim.Adam(p, foreach=True), "itself"),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), "is a tensor"),
        (lambda p: torch.optim.LBFGS(p), "no fused"),
        (lambda p: type("Mine", (torch.optim.SGD,), {})(p, lr=0.1), "not one of torch.optim"),
    ],
)
def test_left_as_written_with_the_reason(make: Any, word: str) -> None:
    optimizer = make(network().parameters())
    before = [dict(group) for group in optimizer.param_groups]
    reason, undo = optimizing.fuse(optimizer)
    assert reason.startswith("as written: ")
    assert word in reason
    assert [dict(group) for group in optimizer.param_groups] == before
    undo()


def test_sparse_gradients_take_the_plain_loop() -> None:
    def run(fused: bool) -> Tensor:
        torch.manual_seed(0)
        embedding = nn.Embedding(6, 2, sparse=True)
        optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
        if fused:
            optimizing.fuse(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            embedding(torch.tensor([1, 2, 2])).square().sum().backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
            assert optimizer.param_groups[0]["fused"] is None
        return embedding.weight.detach()

    torch.testing.assert_close(run(True), run(False))


@pytest.mark.parametrize("bad", [False, True])
def test_the_scaler_goes_into_the_kernel(bad: bool) -> None:
    model, plain = network(), network()
    optimizer = torch.optim.AdamW(model.parameters())
    _, undo = optimizing.fuse(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    train(plain, torch.optim.AdamW(plain.parameters()), 1)
    start = weights(model)
    x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    scaler.scale(model(x).square().mean() * (float("inf") if bad else 1.0)).backward()
    assert optimizer._step_supports_amp_scaling  # type: ignore[attr-defined]
    scaler.step(optimizer)
    scaler.update()
    wanted = start if bad else weights(plain)
    torch.testing.assert_close(weights(model), wanted, rtol=1e-4, atol=1e-6)
    undo()
    assert not hasattr(optimizer, "_step_supports_amp_scaling")
