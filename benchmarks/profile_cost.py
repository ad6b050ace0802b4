"""What `flatout profile` costs outside its recorded window: A without, B with, in turn.

Each process times its own steps. The program takes a first part, in which flatout watches and
records, and a second part when its window is over and all its hooks are out. Compared are the
steps of the second part, and those between the first and the recording, which B watches: by the
clock, and by the CPU time of the program, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

GOAL = 0.05
PROGRAM = """
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
width = int(sys.argv[1])
model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(64 * 1100, width))
times = []
for (batch,) in DataLoader(data, batch_size=64):
    began, used = time.perf_counter(), time.process_time()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    times.append([1000 * (time.perf_counter() - began), 1000 * (time.process_time() - used)])
print("TIMES", json.dumps([times, loss.item()]), file=sys.stderr)
"""
WINDOW_OVER = 700
"""By this step the window is over: undisturbed steps, 1.5 s of recorded, 1 s of sampled ones."""
BEFORE = slice(4, 20)
"""Steps that are waited and watched before anything is recorded."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--width", type=int, default=448, help="sets the length of the step")
    parser.add_argument(
        "--against", type=Path, help="a folder `src` of another version, which runs in turn with it"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        plain = [sys.executable, str(program), str(arguments.width)]
        under = [sys.executable, "-m", "flatout", "profile", "--no-bench", *plain[1:]]
        runs: dict[str, tuple[list[str], Path | None]] = {
            "plain": (plain, None),
            "now": (under, None),
        }
        if arguments.against is not None:
            runs["before"] = (under, arguments.against.resolve(strict=True))
        figures = in_turn(runs, arguments.pairs, folder)
    plain_rows = figures.pop("plain")
    last_losses = {row[-1] for rows in [plain_rows, *figures.values()] for row in rows}
    record.write(
        "profile_cost",
        {
            "step_ms": round(statistics.median(row[0] for row in plain_rows), 3),
            **{name: costs(plain_rows, rows) for name, rows in figures.items()},
            "pairs": arguments.pairs,
            "goal": GOAL,
            "same_last_loss": len(last_losses) == 1,
        },
    )


def in_turn(
    runs: dict[str, tuple[list[str], Path | None]], rounds: int, folder: str
) -> dict[str, list[list[float]]]:
    """Figures of `rounds` runs of each, in an order that moves on with each round."""
    figures: dict[str, list[list[float]]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            command, source = runs[name]
            figures[name].append(measure(command, folder, source))
    return figures


def costs(plain: list[list[float]], under: list[list[float]]) -> dict[str, Any]:
    """What the second adds to the first."""
    pairs = list(zip(plain, under, strict=True))
    return {
        "after_the_window": overhead(pairs, 0),
        "before_the_recording": overhead(pairs, 1),
        "after_the_window_cpu": overhead(pairs, 2),
        "before_the_recording_cpu": overhead(pairs, 3),
        "added_in_the_window_s": added(pairs, 4),
        "added_in_the_window_cpu_s": added(pairs, 5),
    }


def overhead(pairs: list[tuple[list[float], list[float]]], figure: int) -> dict[str, float]:
    """The median of with / without - 1, and its quartiles."""
    ratios = sorted(under[figure] / plain[figure] for plain, under in pairs)
    low, high = (ratios[len(ratios) * k // 4] for k in (1, 3))
    return {
        "median": round(statistics.median(ratios) - 1, 5),
        "lower_quartile": round(low - 1, 5),
        "upper_quartile": round(high - 1, 5),
    }


def added(pairs: list[tuple[list[float], list[float]]], figure: int) -> dict[str, float]:
    """The median of with - without, and its quartiles."""
    seconds = sorted(under[figure] - plain[figure] for plain, under in pairs)
    low, high = (seconds[len(seconds) * k // 4] for k in (1, 3))
    return {
        "median": round(statistics.median(seconds), 3),
        "lower_quartile": round(low, 3),
        "upper_quartile": round(high, 3),
    }


def measure(command: list[str], folder: str, source: Path | None) -> list[float]:
    """Median step in ms after the window and before the recording, wall and CPU; seconds until the
    window is over, wall and CPU; the last loss. `source`: run flatout from there."""
    variables = dict(os.environ)
    if source is not None:
        variables["PYTHONPATH"] = str(source)
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=folder, env=variables
    )
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("TIMES ")]
    times, loss = json.loads(line.removeprefix("TIMES "))
    parts = (times[WINDOW_OVER:], times[BEFORE])
    medians = [statistics.median(step[kind] for step in part) for kind in (0, 1) for part in parts]
    window_s = [sum(step[kind] for step in times[:WINDOW_OVER]) / 1000 for kind in (0, 1)]
    return [*medians, *window_s, loss]


if __name__ == "__main__":
    main()
