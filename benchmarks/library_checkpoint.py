"""What checkpoints cost a training: the stall of one save, and steps with and without, in turn.

Compared with the loop by hand that calls torch.save on the same states. CPU; the state is that of
a Transformer with AdamW. The saves are as far apart as one takes to be written, at the least.
"""

from __future__ import annotations

import argparse
import operator
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import record
import torch
from torch import nn

import flatout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--every", type=int, default=20, help="steps between two saves")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        figures = measure(Training(arguments.width), folder, arguments.rounds, arguments.every)
    finally:
        shutil.rmtree(folder)
    record.write("library_checkpoint", figures)


class Training:
    """Four layers of a Transformer; one call of `step` is one optimizer step."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        self.model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.batch = torch.randn(4, 64, width)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()

    def states(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def measure(training: Training, folder: Path, rounds: int, every: int) -> dict[str, Any]:
    for _ in range(3):
        training.step()
    things = {"model": training.model, "optimizer": training.optimizer}
    kept = flatout.Checkpoint(folder / "flatout", every=None, keep=2, **things)
    kept.save()  # the memory of the copies is there from now on
    kept.wait()
    stalls: dict[str, list[float]] = {"flatout": [], "torch_save": [], "copy_alone": []}
    walls: dict[str, list[float]] = {"none": [], "flatout": [], "torch_save": []}
    written: list[float] = []
    for _ in range(rounds):
        walls["none"].append(steps(training, every))

        begun = time.perf_counter()
        kept.save()
        stalls["flatout"].append(time.perf_counter() - begun)
        walls["flatout"].append(stalls["flatout"][-1] + steps(training, every))
        kept.wait()

        stalls["torch_save"].append(by_hand(training, folder / "by-hand.pt"))
        walls["torch_save"].append(stalls["torch_save"][-1] + steps(training, every))

        begun = time.perf_counter()
        kept.save()
        kept.wait()
        written.append(time.perf_counter() - begun)
        stalls["copy_alone"].append(copy(training))
    idle = after_step_us(kept)
    kept.close()
    step_ms = statistics.median(walls["none"]) / every * 1000
    stall_ms = {name: round(statistics.median(times) * 1000, 2) for name, times in stalls.items()}
    ratio = {
        name: round(statistics.median(map(operator.truediv, walls[name], walls["none"])), 4)
        for name in ("flatout", "torch_save")
    }
    return {
        "state_MB": round(sum(map(size, tensors(training.states()))) / 1e6, 1),
        "step_ms": round(step_ms, 2),
        "every_steps": every,
        "stall_ms": stall_ms,
        "stall_share_of_a_step": round(stall_ms["flatout"] / step_ms, 3),
        "stall_share_of_training": round(stall_ms["flatout"] / step_ms / every, 4),
        "time_with_saves_over_time_without": ratio,
        "written_and_safe_s": round(statistics.median(written), 3),
        "after_step_when_nothing_is_due_us": round(idle, 3),
        "rounds": rounds,
        "threads": torch.get_num_threads(),
    }


def steps(training: Training, count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        training.step()
    return time.perf_counter() - begun


def by_hand(training: Training, path: Path) -> float:
    """The usual lines, and a flush to the disk, which they need as well."""
    begun = time.perf_counter()
    with path.open("wb") as file:
        torch.save(training.states(), file)
        os.fsync(file.fileno())
    return time.perf_counter() - begun


def copy(training: Training) -> float:
    """The least that a copy can cost: into memory that is there."""
    sources = list(tensors(training.states()))
    targets = [torch.zeros_like(source) for source in sources]
    begun = time.perf_counter()
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
    return time.perf_counter() - begun


def after_step_us(checkpoint: Any) -> float:
    begun = time.perf_counter()
    for _ in range(100_000):
        checkpoint.after_step()
    return (time.perf_counter() - begun) * 10


def tensors(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        yield state
    for value in state.values() if isinstance(state, dict) else ():
        yield from tensors(value)


def size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


if __name__ == "__main__":
    main()
