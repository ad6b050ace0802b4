"""What `flatout run` costs with an empty plan: a step of about 5 ms, with and without, in turn.

Each process times its own steps. The program is the same; A is started by Python, B by flatout
without a plan. The pairs alternate, the ratio is taken within each pair.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import record

GOAL = 0.005
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
data = TensorDataset(torch.randn(64 * 600, width))
times = []
for (batch,) in DataLoader(data, batch_size=64):
    began = time.perf_counter()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
whole = sorted(times[50:])
print(json.dumps([1000 * whole[len(whole) // 2], loss.item()]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--width", type=int, default=448, help="sets the length of the step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        plain = [sys.executable, str(program), str(arguments.width)]
        under = [sys.executable, "-m", "flatout", "run", "--no-plan", "--quiet", *plain[1:]]
        pairs = []
        for number in range(arguments.pairs):
            first, second = (plain, under) if number % 2 else (under, plain)
            one, two = measure(first, folder), measure(second, folder)
            pairs.append((one, two) if number % 2 else (two, one))
    ratios = sorted(with_ms / without_ms for (without_ms, _), (with_ms, _) in pairs)
    record.write(
        "transparency",
        {
            "step_ms": round(statistics.median(ms for (ms, _), _ in pairs), 3),
            "overhead": round(statistics.median(ratios) - 1, 5),
            "quartiles": [round(ratios[len(ratios) * k // 4] - 1, 5) for k in (1, 3)],
            "pairs": len(pairs),
            "goal": GOAL,
            "same_last_loss": all(one[1] == two[1] for one, two in pairs),
        },
    )


def measure(command: list[str], folder: str) -> tuple[float, float]:
    """(median step in ms, last loss) as the program tells them."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    step_ms, loss = json.loads(done.stdout)
    return step_ms, loss


if __name__ == "__main__":
    main()
