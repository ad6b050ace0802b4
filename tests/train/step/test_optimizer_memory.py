from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from flatout_train.step.optimizer_memory import step_optimizer

Make = Callable[[nn.Module], torch.optim.Optimizer]


class Ends(TorchFunctionMode):
    """Memory ends at the `at`-th call of `name`, once or for good."""

    def __init__(self, name: str, at: int, times: int = 1) -> None:
        super().__init__()
        self.name, self.at, self.times, self.calls = name, at, times, 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") == self.name:
            self.calls += 1
            if self.at <= self.calls < self.at + self.times:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return function(*args, **(kwargs or {}))


def trained(make: Make, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = make(model)
    for _ in range(steps):
        backward(model)
        optimizer.step()
    backward(model)
    return model, optimizer


def backward(model: nn.Module) -> None:
    model.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    states = optimizer.state_dict()["state"]
    kept = [value for each in states.values() for value in each.values() if value is not None]
    return copy.deepcopy([*(p.detach() for p in model.parameters()), *kept])


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def adamw(**options: Any) -> Make:
    return lambda model: torch.optim.AdamW(model.parameters(), 0.1, **options)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1, foreach=True)


@pytest.mark.parametrize(
    ("make", "steps", "name", "at"),
    [
        (adamw(), 0, "zeros_like", 1),
        (adamw(), 0, "zeros_like", 2),  # in the middle of one parameter's state
        (adamw(), 0, "zeros_like", 7),  # some parameters have their state
        (adamw(foreach=True), 0, "zeros_like", 5),
        (adamw(fused=True), 0, "zeros_like", 3),
        (adamw(foreach=True, weight_decay=0), 0, "_foreach_sqrt", 1),  # new state alone has changed
        (sgd, 0, "_foreach_add", 1),
        (sgd, 3, "_foreach_add", 1),
    ],
)
def test_a_step_that_changed_nothing_yet_is_done_again(
    make: Make, steps: int, name: str, at: int
) -> None:
    model, optimizer = trained(make, steps)
    twin, plain = trained(make, steps)
    plain.step()
    with Ends(name, at) as ends:
        step_optimizer(optimizer, optimizer.step)
    assert ends.calls >= at
    for one, other in zip(state(model, optimizer), state(twin, plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    assert not any(group["foreach"] for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("make", "steps", "name", "at"),
    [
        (adamw(foreach=True), 0, "_foreach_sqrt", 1),  # weight decay has changed the weights
        (adamw(foreach=True), 2, "_foreach_sqrt", 1),
        (adamw(foreach=True, weight_decay=0), 2, "_foreach_sqrt", 1),
        (adamw(foreach=False), 2, "sqrt", 2),
    ],
)
def test_a_step_that_was_applied_in_part_is_told(
    make: Make, steps: int, name: str, at: int
) -> None:
    _, optimizer = trained(make, steps)
    with (
        Ends(name, at) as ends,
        pytest.raises(RuntimeError, match="Load the last checkpoint") as raised,
    ):
        step_optimizer(optimizer, optimizer.step)
    assert ends.calls == at
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
    assert not isinstance(raised.value, torch.OutOfMemoryError)


def test_a_step_that_fits_neither_time_leaves_everything_as_it_was() -> None:
    model, optimizer = trained(adamw(), 0)
    before = state(model, optimizer)
    with (
        Ends("zeros_like", 4, times=100),
        pytest.raises(torch.OutOfMemoryError, match="as before the step"),
    ):
        step_optimizer(optimizer, optimizer.step)
    assert same(state(model, optimizer), before)
    assert len(optimizer.state) == 0
    step_optimizer(optimizer, optimizer.step)
    twin, plain = trained(adamw(), 0)
    plain.step()
    assert same(state(model, optimizer), state(twin, plain))


def test_parameters_of_several_kinds_are_never_done_again() -> None:
    """Which kind comes first is not known, and the mark is on one of them."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def take() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(RuntimeError, match="middle of its step"):
        step_optimizer(optimizer, take)


def test_counters_that_are_plain_numbers_count_as_applied() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.param_groups[0]["done"] = self.param_groups[0].get("done", 0) + 1
            if self.param_groups[0]["done"] == 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().step(closure)

    _, optimizer = trained(lambda model: Counting(model.parameters(), 0.1), 1)
    with pytest.raises(RuntimeError, match="Load the last checkpoint"):
        step_optimizer(optimizer, optimizer.step)


def test_a_scaler_s_step_is_done_again_too() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model, optimizer = trained(adamw(), 0)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad *= scaler.scale(torch.ones(())).item()
    with Ends("zeros_like", 3):
        step_optimizer(optimizer, lambda: scaler.step(optimizer))
    scaler.update()
    twin, plain = trained(adamw(), 0)
    plain.step()
    for one, other in zip(state(model, optimizer), state(twin, plain), strict=True):
        torch.testing.assert_close(one, other)


def test_other_errors_pass_through() -> None:
    _, optimizer = trained(sgd, 0)

    def take() -> None:
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        step_optimizer(optimizer, take)
