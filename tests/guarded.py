"""Models of many kinds, recorded calls of them, and all of a program that must not change."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from flatout_agent.live import calls
from flatout_agent.speedups import own_hooks

Loss = Callable[[Any], torch.Tensor]


class Tagger(nn.Module):
    """Embedding, LSTM, linear; `keeps`: the hidden state stays on the model from call to call."""

    def __init__(self, keeps: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 32, 2, batch_first=True)
        self.out = nn.Linear(32, 50)
        self.keeps = keeps
        self.state: tuple[torch.Tensor, ...] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, state = self.lstm(self.embed(x), self.state)
        self.state = tuple(s.detach() for s in state) if self.keeps else None
        return self.out(found)


class Attending(nn.Module):
    """A small transformer."""

    def __init__(self, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(32, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(self.embed(x)))


class Made(nn.Module):
    """A model of these parts, which computes this."""

    def __init__(self, compute: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(self, *args, **kwargs)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def conv(layers: int = 2) -> nn.Module:
    found: list[nn.Module] = []
    for number in range(layers):
        found += [nn.Conv2d(16 if number else 3, 16, 3, padding=1, bias=False),
                  nn.BatchNorm2d(16), nn.ReLU()]  # fmt: skip
    return nn.Sequential(*found, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def words_by_words() -> nn.Module:
    embed = nn.Embedding(50, 24, sparse=True)
    return nn.Sequential(embed, nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 50))


def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 20), torch.randint(10, (32,))


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 3, 12, 12), torch.randint(10, (32,))


def words() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(50, (16, 12)), torch.randint(50, (16, 12))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (mlp, vectors),
    "conv": (conv, images),
    "lstm": (Tagger, words),
    "sparse gradients": (words_by_words, words),
    "transformer": (Attending, words),
}


def cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, -2), labels.flatten())


def record(model: nn.Module, loss: Loss, *args: Any, **kwargs: Any) -> calls.RecordedCall:
    """One call of the program with its backward pass; the gradients are in `.grad`."""
    recorded = calls.begin(model, args, kwargs)
    with own_hooks.watch(model, called=True) as recorded.shown:
        output = model(*args, **kwargs)
    calls.finish(recorded, output)
    loss(output).backward()
    return recorded


def train_call(
    name: str, seed: int = 0
) -> tuple[nn.Module, calls.RecordedCall, calls.RecordedCall]:
    """(a model of `NETS`, a call of it, a call on another batch)."""
    torch.manual_seed(seed)
    make, data = NETS[name]
    model = make()
    found = []
    for _ in range(2):
        model.zero_grad()
        x, y = data()
        found.append(record(model, lambda output, y=y: cross_entropy(output, y), x))
    return model, found[1], found[0]


def everything(model: nn.Module) -> dict[str, Any]:
    """All of a program that a repeated call might change, as it is now."""
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": str(numpy.random.get_state()),
        "threads": torch.get_num_threads(),
    }
    for name, parameter in model.named_parameters():
        state[f"{name}"] = parameter.detach().clone()
        state[f"{name} grad"] = None if parameter.grad is None else parameter.grad.clone()
        state[f"{name} grad id"] = id(parameter.grad)
        state[f"{name} version"] = parameter._version
    for name, buffer in model.named_buffers():
        state[f"{name}"] = buffer.clone()
        state[f"{name} id"] = id(buffer)
        state[f"{name} version"] = buffer._version
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                state[f"{name}.{key}"] = _plain(value)
    return state


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, (int, float, str, bool, type(None), set)):
        return value
    return id(value)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or one.layout != other.layout:
            return False
        return torch.equal(one.to_dense(), other.to_dense())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what has changed."""
    names = before.keys() | after.keys()
    return sorted(n for n in names if not same(before.get(n), after.get(n)))
