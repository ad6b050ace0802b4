"""A network that draws, its loop by hand, what is the same to the last bit, what was called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

PLAIN: dict[str, Any] = {"precision": "fp32", "compile": False}


def network(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3)
    )


def by_hand(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list[tuple[Tensor, Tensor]],
    clip: float | None = None,
    scheduler: Any = None,
    average: AveragedModel | None = None,
) -> list[float]:
    losses = []
    for input, target in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(input), target)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if average is not None:
            average.update_parameters(model)
        losses.append(loss.item())
    return losses


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, whatever nest."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Calls(TorchDispatchMode):
    """The operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))
