"""How often a live tuning keeps a boost that does nothing: its decisions, simulated and real.

python benchmarks/live_decisions.py                  # about 4 minutes; nothing else should run
python benchmarks/live_decisions.py --real 3 --simulated 100

Simulated: streams of log-ratios with noise of many kinds go through `decide.answer` as a tuning
asks it. Real: programs run under live orders in processes of their own, and may try boosts whose
`apply` does nothing. Any that is kept is a wrong decision.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

import flatout_agent
from flatout_agent import wire
from flatout_agent.live import decide

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # the noise is that of the tests
INJECT = Path(flatout_agent.__file__).parent / "inject"
GAINS = (1.02, 1.05, 1.1, 2.0)
MOST_S = 105.0
"""Seconds that one program is tuned at most."""

PROGRAM = """
import sys, types
import torch
from flatout_agent.boost import Applied, Boost, Moment, Risk

def nothing():
    return types.SimpleNamespace(
        BOOST=Boost("0", Risk.EXACT, Moment.MODEL), applies=lambda facts, params: None,
        promise=lambda facts, params: 10.0, apply=lambda job, target, params: Applied(int))

boosts = {f"nothing-{number}": nothing() for number in range(int(sys.argv[2]))}
for name in ("candidates", "recipe", "checks"):
    sys.modules[f"flatout_agent.live.{name}"].load = boosts.__getitem__
for name in ("live.candidates", "live.run"):
    sys.modules[f"flatout_agent.{name}"].names = lambda: sorted(boosts)
sys.modules["flatout_agent.apply.booster"].load = boosts.__getitem__

class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(500, 64), torch.nn.Linear(96, 500)
        self.lstm = torch.nn.LSTM(64, 96, batch_first=True)
    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])

if sys.argv[1] == "lstm":
    model = Words()
    batch = lambda: (torch.randint(500, (16, 24)), torch.randint(500, (16 * 24,)))
else:
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    model = torch.nn.Sequential(linear(256, 512), relu(), linear(512, 512), relu(), linear(512, 10))
    batch = lambda: (torch.randn(128, 256), torch.randint(10, (128,)))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
while True:
    x, y = batch()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y).backward()
    optimizer.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", type=int, default=5000, help="decisions of each noise")
    parser.add_argument("--real", type=int, default=30, help="decisions in each program")
    parser.add_argument("--folder", type=Path, default=record.RESULTS)
    arguments = parser.parse_args()
    programs = {name: real(name, arguments.real) for name in ("lstm", "mlp")}
    record.write(
        "live_decisions",
        {
            "goal": {"false_keeps": decide.ALPHA},
            "simulated": simulated(arguments.simulated),
            "real": programs,
            "real_decisions": sum(found["decisions"] for found in programs.values()),
            "real_false_keeps": sum(found["kept"] for found in programs.values()),
        },
        arguments.folder,
    )


def simulated(count: int) -> dict[str, Any]:
    """Share of false keeps and of gains found, and pairs that a decision takes, by noise."""
    from live_noise import MODELS
    from live_noise import answer as decided

    rows = {}
    for name, noise in MODELS.items():
        rng = random.Random(name)
        answers = [decided(noise(rng)) for _ in range(count)]
        rows[name] = {
            "decisions": count,
            "false_keeps": share(answers),
            "pairs": round(statistics.fmean(answer.pairs for answer in answers), 1),
            "found": {
                str(gain): share([decided(noise(rng), gain) for _ in range(max(1, count // 10))])
                for gain in GAINS
            },
        }
    return rows


def share(answers: list[decide.Answer]) -> float:
    """Share of decisions to keep."""
    return round(sum(answer.verdict == "faster" for answer in answers) / len(answers), 4)


def real(name: str, count: int) -> dict[str, Any]:
    """One program under live orders, with so many boosts to try that do nothing."""
    with tempfile.TemporaryDirectory() as folder:
        script, orders = Path(folder, "program.py"), Path(folder, "orders.json")
        script.write_text(PROGRAM)
        allowed = tuple(f"nothing-{number}" for number in range(count))
        live = wire.LiveOrders(allowed=allowed, budget_s=MOST_S, stop=True)
        orders.write_text(wire.dump(wire.Orders(folder, live=live)))
        command = [sys.executable, str(script), name, str(count)]
        variables = {"PYTHONPATH": str(INJECT), wire.ORDERS_ENV: str(orders)}
        began = time.perf_counter()
        subprocess.run(command, env={**os.environ, **variables}, timeout=4 * MOST_S, check=True)
        seconds = time.perf_counter() - began
        lines = [line for path in Path(folder).glob("*.jsonl") for line in path.open()]
    return told(seconds, [wire.record(line) for line in lines])


def told(seconds: float, records: list[Any]) -> dict[str, Any]:
    """What the program's records say of its decisions."""
    decided = [item for item in records if isinstance(item, wire.Decided) and item.pairs]
    first = {item.id: item for item in reversed(decided)}.values()  # not what came of it later
    (*_, summary) = (item for item in records if isinstance(item, wire.LiveSummary))
    faults = [item.message for item in records if isinstance(item, wire.Fault)]
    return {
        "decisions": len(first),
        "kept": sum(item.verdict == "kept" for item in first),
        "verdicts": {kind: sum(item.verdict == kind for item in first)
                     for kind in sorted({item.verdict for item in first})},
        "pairs": round(statistics.fmean(item.pairs for item in first), 1),
        "seconds_each": round(statistics.fmean(item.cost_s for item in first), 2),
        "largest_gain": round(max(item.gain or 0.0 for item in first), 4),
        "step_ms": round(summary.written_ms or 0.0, 3),
        "noise": round(summary.noise or 0.0, 4),
        "seconds": round(seconds, 1),
        "faults": faults,
    }  # fmt: skip


if __name__ == "__main__":
    main()
