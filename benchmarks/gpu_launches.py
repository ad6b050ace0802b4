"""Training that waits for kernel launches: the whole step as one graph against the same, eager.

Batches of 1 to 8 in float32, a loop by hand, `train_step` without and with the graph, in turn in
one process, no compiler. And what `step()` costs beyond the
same calls by hand at about 4 ms a step. `python gpu_launches.py <part>` prints one line of JSON.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_rates import wait
from torch import nn

import flatout

Made = tuple[nn.Module, Callable[[int, torch.device], tuple[Any, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--small", action="store_true", help="tiny, to see that it runs")
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(PARTS[arguments.part](arguments.small)) + "\n")


def whole_step(small: bool) -> dict[str, Any]:
    """The speed-up of the graph, for each model and batch size."""
    cases: dict[str, Any] = {}
    for name, make in MODELS.items():
        for size in (1,) if small else (1, 2, 4, 8):
            cases[f"{name}, batch {size}"] = one_case(make, size, small)
    speedups = [case["speedup"] for case in cases.values()]
    return {"geometric_mean": round(statistics.geometric_mean(speedups), 2), "goal": 3, **cases}


def one_case(make: Callable[[], Made], size: int, small: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    device = flatout.device()
    model, batches = make()
    batch = batches(size, device)
    loss_fn = nn.CrossEntropyLoss()
    runs: dict[str, Callable[[], Any]] = {"by_hand": by_hand(model, loss_fn, batch, device)}
    for way, graph in (("eager", False), ("graph", True)):
        own = copy.deepcopy(model).to(device)
        step = flatout.train_step(
            own,
            loss_fn,
            torch.optim.AdamW(own.parameters(), lr=1e-3),
            precision="fp32",
            compile=False,
            graph=graph,
        )
        runs[way] = functools.partial(step, batch)
    for run in runs.values():
        for _ in range(2 if small else 10):
            run()
    times = {way: statistics.median(t) for way, t in in_turn(runs, device, small).items()}
    return {
        **{f"{way}_us": round(spent, 1) for way, spent in times.items()},
        "speedup": round(times["by_hand"] / times["graph"], 2),
        "graph": step.notes["graph"],
    }


def by_hand(
    model: nn.Module, loss_fn: nn.Module, batch: tuple[Any, Any], device: torch.device
) -> Callable[[], None]:
    """The loop as it is usually written."""
    own = copy.deepcopy(model).to(device)
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_fn(own(batch[0]), batch[1]).backward()
        optimizer.step()

    return run


def overhead(small: bool) -> dict[str, Any]:
    """Share of a step of about 4 ms that `step()` takes beyond the same calls by hand."""
    device = flatout.device()
    width, rows = (64, 8) if small else (2048, 2048)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).to(device)
    x, y = torch.randn(rows, width, device=device), torch.randint(0, 9, (rows,), device=device)
    loss_fn = nn.CrossEntropyLoss()
    hand, own = copy.deepcopy(model), copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3, fused=True) for m in (hand, own)]
    step = flatout.train_step(
        own, loss_fn, optimizers[1], precision="fp32", compile=False, graph=False
    )

    def loop() -> None:
        optimizers[0].zero_grad(set_to_none=True)
        loss_fn(hand(x), y).backward()
        optimizers[0].step()

    times = in_turn({"by_hand": loop, "step": lambda: step((x, y))}, device, small)
    pairs = zip(times["by_hand"], times["step"], strict=True)
    beyond = statistics.median(b - a for a, b in pairs)
    base = statistics.median(times["by_hand"])
    return {
        "by_hand_us": round(base, 1),
        "beyond_us": round(beyond, 1),
        "share": round(beyond / base, 4),
        "goal_share": 0.01,
    }


def in_turn(
    runs: dict[str, Callable[[], Any]], device: torch.device, small: bool
) -> dict[str, list[float]]:
    """Microseconds a call, in blocks that take turns and begin in turn."""
    rounds, calls = (2, 1) if small else (12, 40)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for place in range(rounds + 1):
        for name in list(runs) if place % 2 else reversed(runs):
            wait(device)
            began = time.perf_counter()
            for _ in range(calls):
                runs[name]()
            wait(device)
            if place:
                times[name].append((time.perf_counter() - began) / calls * 1e6)
    return times


def perceptron() -> Made:
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU()]
    return nn.Sequential(*layers), lambda n, d: (
        torch.randn(n, 256, device=d),
        torch.randint(0, 256, (n,), device=d),
    )


def convolutional() -> Made:
    layers: list[nn.Module] = []
    inputs = 3
    for width in (32, 32, 64, 64, 128, 128):
        stride = 2 if width > inputs > 3 else 1
        layers += [nn.Conv2d(inputs, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU()]
        inputs = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)]
    return nn.Sequential(*layers), lambda n, d: (
        torch.randn(n, 3, 32, 32, device=d),
        torch.randint(0, 10, (n,), device=d),
    )


class Classifier(nn.Module):
    """A transformer that names the class of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
        self.words = nn.Embedding(1000, 128)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens)).mean(1))  # type: ignore[no-any-return]


def transformer() -> Made:
    return Classifier(), lambda n, d: (
        torch.randint(0, 1000, (n, 64), device=d),
        torch.randint(0, 10, (n,), device=d),
    )


class Recurrent(nn.Module):
    """A GRU written as a loop over time, as research code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(64, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.new_zeros(x.shape[0], 128)
        for moment in x.unbind(1):
            hidden = self.cell(moment, hidden)
        return self.head(hidden)  # type: ignore[no-any-return]


def recurrent() -> Made:
    return Recurrent(), lambda n, d: (
        torch.randn(n, 20, 64, device=d),
        torch.randint(0, 10, (n,), device=d),
    )


MODELS = {
    "perceptron": perceptron,
    "convolutional": convolutional,
    "transformer": transformer,
    "recurrent": recurrent,
}
PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "whole_step": whole_step,
    "overhead": overhead,
}


if __name__ == "__main__":
    main()
