"""What watching costs with nothing on: `run` without a plan, `run --live` and `flatout.live()`.

python benchmarks/transparency.py              # some fifteen minutes on two cores

Processes in turn: the program by Python alone, under `run`, under `run --live` where nothing
applies, and with `flatout.live()` where nothing applies. Each tells the median of its own steps.
What flatout does in a step is the same whatever the model's width, so it is measured twice: at
steps of some 3 ms, where the noise of two processes (a few percent) hides it, and at steps of a few
tenths of a millisecond, where it shows; there its share of a step of 3 ms can be told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from flatout.tuning.confirm import interval

GOAL = 0.003
STEP_MS = 3.0
PROGRAM = """
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
width, steps = int(sys.argv[1]), int(sys.argv[2])
model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(64 * 64, width))
loader = DataLoader(data, batch_size=64)
times, last = [], time.perf_counter()
while len(times) < steps:
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
whole = sorted(times[-(steps // 3):])  # by then --live has found that nothing applies
print(json.dumps([1000 * whole[len(whole) // 2], loss.item()]))
"""
IN_PROCESS = 'import flatout; flatout.live(only=["channels-last"])'
FLATOUT = [sys.executable, "-m", "flatout", "run", "--quiet"]
ARMS = {
    "alone": [sys.executable],
    "run": [*FLATOUT, "--no-plan"],
    "live": [*FLATOUT, "--live", "--only", "channels-last"],  # there is no convolution
    "in_process": [sys.executable],
}
WATCHED = ("run", "live", "in_process")
SIZES = {"short": (32, 9000), "3 ms": (448, 2400)}
"""Width and steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--long-rounds", type=int, default=7)
    arguments = parser.parse_args()
    rounds = {"short": arguments.rounds, "3 ms": arguments.long_rounds}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        program.with_name("in_process.py").write_text(IN_PROCESS + PROGRAM)
        figures: dict[str, Any] = {
            name: size(program, width, steps, rounds[name])
            for name, (width, steps) in SIZES.items()
        }
    short = figures["short"]
    shares = {
        arm: {
            "cost": round(short[arm]["cost_us"] / 1000 / STEP_MS, 5),
            "at_most": round(short[arm]["interval_us"][1] / 1000 / STEP_MS, 5),
        }
        for arm in WATCHED
    }
    record.write("transparency", {"of_a_step_of_3_ms": shares, "goal": GOAL, **figures})


def size(program: Path, width: int, steps: int, rounds: int) -> dict[str, Any]:
    """What the ways of watching cost at this width, in microseconds a step."""
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    losses: set[float] = set()
    names = list(ARMS)
    for number in range(rounds):
        turn = number % len(names)
        for arm in names[turn:] + names[:turn]:
            script = program.with_name("in_process.py") if arm == "in_process" else program
            step_ms, loss = measure([*ARMS[arm], str(script), str(width), str(steps)])
            times[arm].append(step_ms)
            losses.add(loss)
    return {
        "step_ms": round(statistics.median(times["alone"]), 4),
        "rounds": rounds,
        "same_last_loss": len(losses) == 1,
        **{arm: cost(times["alone"], times[arm]) for arm in WATCHED if arm in times},
    }


def cost(alone: list[float], watched: list[float]) -> dict[str, Any]:
    """Median of the differences within the rounds, and its interval."""
    pairs = tuple(1000 * (after - before) for before, after in zip(alone, watched, strict=True))
    low, high = interval(pairs)
    return {
        "cost_us": round(statistics.median(pairs), 2),
        "interval_us": [round(low, 2), round(high, 2)],
    }


def measure(command: list[str]) -> tuple[float, float]:
    """(median step in ms, last loss) as the program tells them."""
    folder = Path(command[-3]).parent
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    step_ms, loss = json.loads(done.stdout)
    return step_ms, loss


if __name__ == "__main__":
    main()
