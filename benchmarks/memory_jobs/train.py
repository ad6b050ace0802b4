"""A model of some kind with an optimizer, on the CPU: the script whose memory is estimated.

    python train.py MODEL OPTIMIZER [--measure FILE]

`--measure` writes the most bytes in use at once in a step, weights and state included, as torch's
profiler counts the allocations of the CPU's allocator: those that kernels make for themselves too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

STEPS = 6
MEASURED = 3
"""The steps after that are measured."""


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm(self.first(x)))
        return F.relu(x + self.norm2(self.second(inner)))


def resnet() -> tuple[nn.Module, TensorDataset, int]:
    """Residual blocks on 32 x 32 images, three stages."""
    stages: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for width in (32, 64, 128):
        stages += [Residual(width), Residual(width)]
        if width < 128:
            stages.append(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1))
    model = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,)))
    return model, data, 64


class Gpt(nn.Module):
    """Transformer layers between an embedding and a head of the same weight."""

    def __init__(self, words: int = 2000, width: int = 192, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = {"dim_feedforward": 4 * width, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 6, **layer) for _ in range(layers)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden).flatten(0, 1)


def gpt() -> tuple[nn.Module, TensorDataset, int]:
    tokens = torch.randint(0, 2000, (128, 64))
    return Gpt(), TensorDataset(tokens, tokens.roll(-1, 1)), 16


def mlp() -> tuple[nn.Module, TensorDataset, int]:
    layers = [nn.Sequential(nn.ReLU(), nn.Linear(1024, 1024)) for _ in range(6)]
    model = nn.Sequential(nn.Linear(256, 1024), *layers, nn.Linear(1024, 10))
    data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
    return model, data, 512


class Attention(nn.Module):
    """An encoder's layer as tutorials write it, with the weights of attention as a matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(-1)
        mixed = (F.dropout(weights, 0.1, self.training) @ value).transpose(1, 2)
        x = x + self.out(mixed.reshape(rows, length, width))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, width: int = 160, layers: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.places = nn.Parameter(torch.zeros(1, 121, width))
        self.layers = nn.Sequential(*(Attention(width, 5) for _ in range(layers)))
        self.head = nn.Linear(width, 20)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(tokens).mean(1))


def vit() -> tuple[nn.Module, TensorDataset, int]:
    data = TensorDataset(torch.randn(160, 3, 44, 44), torch.randint(0, 20, (160,)))
    return Vit(), data, 24


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3000, 128)
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(256, 3000)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0]).flatten(0, 1)


def lstm() -> tuple[nn.Module, TensorDataset, int]:
    tokens = torch.randint(0, 3000, (200, 48))
    return Lstm(), TensorDataset(tokens, tokens.roll(-1, 1)), 20


MODELS = {"resnet": resnet, "gpt": gpt, "mlp": mlp, "vit": vit, "lstm": lstm}
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "adamw-foreach": lambda params: torch.optim.AdamW(params, lr=1e-3, foreach=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
}


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output, targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("optimizer", choices=OPTIMIZERS)
    parser.add_argument("--measure", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    model, data, rows = MODELS[options.model]()
    optimizer = OPTIMIZERS[options.optimizer](model.parameters())
    batches = iter(DataLoader(data, batch_size=rows, shuffle=True))
    for _ in range(MEASURED):
        step(model, optimizer, next(batches))
    if options.measure is None:
        for _ in range(STEPS - MEASURED):
            step(model, optimizer, next(batches))
        return
    held = held_bytes(model, optimizer)
    batch = next(batches)
    with torch.profiler.profile(profile_memory=True) as profiler:
        step(model, optimizer, batch)
    batch_bytes = sum(tensor.nbytes for tensor in batch)
    figures = {"measured": held + batch_bytes + highest(profiler)}
    options.measure.write_text(json.dumps(figures), encoding="utf-8")


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    inputs, targets = batch
    optimizer.zero_grad()
    loss_of(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Weights, buffers and state of this process, each storage once."""
    tensors = [*model.parameters(), *model.buffers()]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def highest(profiler: Any) -> int:
    """Most bytes in use at once beyond those at the beginning."""
    in_use = most = 0
    for _, change in sorted(changes(profiler)):
        in_use += change
        most = max(most, in_use)
    return most


def changes(profiler: Any) -> Iterator[tuple[int, int]]:
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if "Allocation" in str(event.tag):
            yield event.start_time_ns, event.extra_fields.alloc_size


if __name__ == "__main__":
    main()
