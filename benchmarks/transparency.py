"""What watching costs with nothing on: `run` without a plan, `run --live` and `flatout.live()`.

python benchmarks/transparency.py              # some six minutes on two cores

Four processes train the same program: by Python alone, under `run`, under `run --live` where
nothing applies, and with `flatout.live()` where nothing applies. When all have settled, each in
turn takes a block of steps and tells their median; the others wait meanwhile. Some rounds of fresh
processes, as two processes of one program may differ by a few percent for all of their lives.
What flatout does in a step is the same whatever the model's size, so it is measured twice: at
steps of some 3 ms, where noise hides it, and at steps of a quarter of a millisecond, where it
shows; there its share of a step of 3 ms can be told.
"""

from __future__ import annotations

import argparse
import contextlib
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
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
layers, width, samples, settled, block = map(int, sys.argv[1:])
model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(64 * samples, width))
loader = DataLoader(data, batch_size=samples)
times, last, steps = [], time.perf_counter(), 0
while True:
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        times.append(time.perf_counter() - last)
        if steps >= settled and steps % block == 0:
            print(1000 * sorted(times[-block:])[block // 2], loss.item(), flush=True)
            if not sys.stdin.readline():
                sys.exit()
        last = time.perf_counter()
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
SIZES = {"short": (1, 32, 8, 4000, 400), "3 ms": (4, 448, 64, 600, 40)}
"""Layers, width, samples of a batch, steps until all is decided, and steps in a block."""
BLOCKS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--long-rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds = {"short": arguments.rounds, "3 ms": arguments.long_rounds}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        program.with_name("in_process.py").write_text(IN_PROCESS + PROGRAM)
        figures: dict[str, Any] = {
            name: size(program, SIZES[name], count) for name, count in rounds.items() if count
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


def size(program: Path, numbers: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """What the ways of watching cost at this size, in microseconds a step."""
    alone: list[float] = []
    costs: dict[str, list[float]] = {arm: [] for arm in WATCHED}
    same = True
    for _ in range(rounds):
        times, losses = one_round(program, numbers)
        same = same and len(losses) == 1
        alone.append(statistics.median(times["alone"]))
        for arm in WATCHED:
            pairs = zip(times["alone"], times[arm], strict=True)
            costs[arm].append(statistics.median(1000 * (after - before) for before, after in pairs))
    return {
        "step_ms": round(statistics.median(alone), 4),
        "rounds": rounds,
        "same_last_loss": same,
        **{arm: cost(costs[arm]) for arm in WATCHED},
    }


def one_round(program: Path, numbers: tuple[int, ...]) -> tuple[dict[str, list[float]], set[float]]:
    """(median step of each block in ms, the last losses) of one process per arm, in turn."""
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    names = list(ARMS)
    losses: set[float] = set()
    with contextlib.ExitStack() as stack:
        started = {}
        for arm, words in ARMS.items():
            script = program.with_name("in_process.py") if arm == "in_process" else program
            started[arm] = stack.enter_context(
                subprocess.Popen(
                    [*words, str(script), *map(str, numbers)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    cwd=program.parent,
                )
            )
            told(started[arm])
        for number in range(BLOCKS):
            turn = number % len(names)
            for arm in names[turn:] + names[:turn]:
                next_block(started[arm])
                step_ms, loss = told(started[arm])
                times[arm].append(step_ms)
                if number == BLOCKS - 1:
                    losses.add(loss)
    return times, losses


def next_block(process: subprocess.Popen[str]) -> None:
    """Let it train for another block."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def told(process: subprocess.Popen[str]) -> tuple[float, float]:
    """(median step in ms, last loss) of the block that has ended."""
    assert process.stdout is not None
    step_ms, loss = map(float, process.stdout.readline().split())
    return step_ms, loss


def cost(rounds: list[float]) -> dict[str, Any]:
    """Median of the rounds' differences, and its interval."""
    low, high = interval(tuple(rounds)) or (rounds[0], rounds[0])
    return {
        "cost_us": round(statistics.median(rounds), 2),
        "interval_us": [round(low, 2), round(high, 2)],
        "rounds_us": [round(value, 2) for value in rounds],
    }


if __name__ == "__main__":
    main()
