"""Does `flatout.loader` feed the model: a loop fed by it, and the same loop on batches in memory.

In turn, in pairs of rounds, in one process; the figure is the median over the pairs of the rate of
the fed loop as a share of the rate from memory. Three jobs, each at least some milliseconds a step:

- tensors: 16,384 images 3 x 32 x 32 as a TensorDataset, shuffled. From memory: one batch.
- decode: the cost of decoding: 2,048 images 3 x 160 x 160 uint8, zlib-compressed, unpacked in
  `__getitem__` and cropped to 64 x 64 at a random place, so that no cache can help. From memory:
  one batch. Training has all cores but one, in both loops; loading has the rest.

Which loop comes first changes from pair to pair. What workers had ready when a round begins is
drawn and thrown away first: they go on loading while the other loop runs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import record
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import flatout
from flatout_agent.limits import usable_cores

GOAL = 0.95
READY = 16
"""More batches than workers and prefetching hold."""
Step = Callable[[Any], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9, help="pairs of rounds a job")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round, about")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"device": str(flatout.device()), "cores": usable_cores()}
    for name, job in {"tensors": tensors, "decode": decode}.items():
        figures[name] = job(arguments.pairs, arguments.seconds)
    figures["lowest_share"] = min(figures[name]["share"] for name in ("tensors", "decode"))
    figures["goal_share"] = GOAL
    record.write("library_loader", figures)


def tensors(pairs: int, seconds: float) -> dict[str, Any]:
    data = TensorDataset(torch.randn(16_384, 3, 32, 32), torch.randint(0, 10, (16_384,)))
    loader = flatout.loader(data, 64, shuffle=True)
    return compared(loader, images_step(64), pairs, seconds)


class Packed(Dataset[tuple[Tensor, int]]):
    """Samples that cost what a small JPEG costs."""

    side, crop = 160, 64

    def __init__(self, samples: int) -> None:
        ramp = torch.arange(3 * self.side * self.side)
        self.packed = [
            zlib.compress((ramp * (number + 1) // 977 % 256).byte().numpy().tobytes(), 1)
            for number in range(samples)
        ]

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raw = bytearray(zlib.decompress(self.packed[index]))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(3, self.side, self.side)
        top, left = torch.randint(self.side - self.crop, (2,)).tolist()
        cropped = image[:, top : top + self.crop, left : left + self.crop]
        return cropped.float() / 255, index % 10


def decode(pairs: int, seconds: float) -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, usable_cores() - 1))
    workers = "auto" if flatout.device().type != "cpu" else 1
    loader = flatout.loader(Packed(2048), 32, shuffle=True, workers=workers)
    found = compared(loader, images_step(64), pairs, seconds)
    torch.set_num_threads(before)
    return found


def images_step(width: int) -> Step:
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    ).to(flatout.device())
    return training(model, lambda batch: functional.cross_entropy(model(batch[0]), batch[1]))


def training(model: nn.Module, loss: Callable[[Any], Tensor]) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()

    return step


def compared(loader: Any, step: Step, pairs: int, seconds: float) -> dict[str, Any]:
    batches = endless(loader)
    first = next(batches)
    spent(step, [first] * 10)
    steps = max(8, int(seconds / (spent(step, [first] * 10) / 10)))
    shares, step_ms = [], []
    for pair in range(pairs + 1):
        list(itertools.islice(batches, READY))  # what lies ready
        rounds = {"fed": itertools.islice(batches, steps), "memory": [first] * steps}
        order = ("fed", "memory") if pair % 2 else ("memory", "fed")
        took = {name: spent(step, rounds[name]) for name in order}
        if pair:  # the first pair warms up
            shares.append(took["memory"] / took["fed"])
            step_ms.append(took["memory"] / steps * 1e3)
    return {
        "share": round(statistics.median(shares), 4),
        "lowest": round(min(shares), 4),
        "highest": round(max(shares), 4),
        "step_ms": round(statistics.median(step_ms), 2),
        "pairs": pairs,
        "steps": steps,
        "notes": loader.notes,
    }


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def spent(step: Step, batches: Any) -> float:
    """Seconds for a step on each of `batches`, with all of the device's work done."""
    began = time.perf_counter()
    for batch in batches:
        step(batch)
    if flatout.device().type != "cpu":
        torch.get_device_module(flatout.device()).synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
