"""Training that waits for kernel launches: the whole step as one graph against the same, eager.

Batches of 1 to 8 in float32: a loop by hand, `train_step` without and with the graph, and for
batches of one an expert's loop (`torch.compile(mode="reduce-overhead")`, fused optimizer), in turn
in one process. And what an average of the weights costs beside the graph, and what `step()` costs
beyond the same calls by hand at about 4 ms a step. `python gpu_launches.py <part>` prints a line of
JSON after each case.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_rates import wait
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import flatout

Made = tuple[nn.Module, Callable[[int, torch.device], tuple[Any, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--small", action="store_true", help="tiny, to see that it runs")
    arguments = parser.parse_args()
    for figures in PARTS[arguments.part](arguments.small):
        print(json.dumps(figures), flush=True)


def parts(dry: bool) -> list[tuple[Any, ...]]:
    """For `gpu.py`: name, command, limit in seconds, words."""
    limits = {"whole_step": 120, "average": 60, "overhead": 40}
    script, small = str(Path(__file__)), ("--small",) if dry else ()
    return [(part, (script, part, *small), limits[part], WORDS[part]) for part in PARTS]


def whole_step(small: bool) -> Iterator[dict[str, Any]]:
    """The speed-up of the graph, for each model and batch size."""
    cases: dict[str, Any] = {}
    for size in (1,) if small else (1, 2, 4, 8):
        for name, make in list(MODELS.items())[: 2 if small else None]:
            cases[f"{name}, batch {size}"] = one_case(make, size, small)
            speedups = [case["speedup"] for case in cases.values()]
            mean = round(statistics.geometric_mean(speedups), 2)
            yield {"geometric_mean": mean, "lowest": min(speedups), "goal": 3, **cases}


def average(small: bool) -> Iterator[dict[str, Any]]:
    """What `ema=` adds to a step, against torch's own AveragedModel after a step by hand."""
    device = flatout.device()
    model, batches = convolutional()
    batch = batches(4 if small else 64, device)
    loss_fn = nn.CrossEntropyLoss()
    runs: dict[str, Callable[[], Any]] = {}
    for way, ema in (("plain", None), ("average", 0.999)):
        own = copy.deepcopy(model).to(device)
        runs[way] = functools.partial(own_step(own, loss_fn, graph=not small, ema=ema), batch)
    hand = copy.deepcopy(model).to(device)
    averaged = AveragedModel(hand, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
    loop = by_hand(hand, loss_fn, batch)

    def averaged_by_hand() -> None:
        loop()
        averaged.update_parameters(hand)

    runs |= {"plain_by_hand": loop, "average_by_hand": averaged_by_hand}
    times = {way: statistics.median(t) for way, t in in_turn(runs, device, small).items()}
    yield {
        **{f"{way}_us": round(spent, 1) for way, spent in times.items()},
        "adds": round(times["average"] / times["plain"] - 1, 3),
        "adds_by_hand": round(times["average_by_hand"] / times["plain_by_hand"] - 1, 3),
    }


def own_step(model: nn.Module, loss_fn: nn.Module, **options: Any) -> Any:
    """`train_step` in float32, no compiler."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return flatout.train_step(model, loss_fn, optimizer, precision="fp32", compile=False, **options)


def one_case(make: Callable[[], Made], size: int, small: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    device = flatout.device()
    model, batches = make()
    batch = batches(size, device)
    loss_fn = nn.CrossEntropyLoss()
    runs = {"by_hand": by_hand(copy.deepcopy(model).to(device), loss_fn, batch)}
    for way, graph in (("eager", False), ("graph", True)):
        step = own_step(copy.deepcopy(model).to(device), loss_fn, graph=graph)
        runs[way] = functools.partial(step, batch)
    if size == 1 and device.type == "cuda":
        runs["expert"] = by_expert(copy.deepcopy(model).to(device), loss_fn, batch)
    for run in runs.values():
        for _ in range(2 if small else 10):
            run()
    times = {way: statistics.median(t) for way, t in in_turn(runs, device, small).items()}
    return {
        **{f"{way}_us": round(spent, 1) for way, spent in times.items()},
        "speedup": round(times["by_hand"] / times["graph"], 2),
        **({"to_expert": round(times["expert"] / times["graph"], 2)} if "expert" in times else {}),
        "graph": step.notes["graph"],
    }


def by_hand(model: nn.Module, loss_fn: nn.Module, batch: tuple[Any, Any]) -> Callable[[], None]:
    """The loop as it is usually written."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_fn(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return run


def by_expert(model: nn.Module, loss_fn: nn.Module, batch: tuple[Any, Any]) -> Callable[[], None]:
    """What PyTorch's guides advise where launches are what takes the time."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    @torch.compile(mode="reduce-overhead")
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_fn(model(x), y)  # type: ignore[no-any-return]

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        forward(*batch).backward()
        optimizer.step()

    return run


def overhead(small: bool) -> Iterator[dict[str, Any]]:
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
    yield {
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
PARTS: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "whole_step": whole_step,
    "average": average,
    "overhead": overhead,
}
WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "whole_step": lambda found: (
        f"{found['geometric_mean']}x, lowest {found['lowest']}x, goal {found['goal']}x"
    ),
    "average": lambda found: f"+{found['adds']:.1%}, by hand +{found['adds_by_hand']:.1%}",
    "overhead": lambda found: f"{found['share']:.2%} of {found['by_hand_us']:.0f} us, goal 1%",
}


if __name__ == "__main__":
    main()
