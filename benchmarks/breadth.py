"""Every style of training loop: is it faster under its plan, and does it still learn the same?

Each script of `tests/jobs` that trains is tuned, then run to its end as written and with the plan;
the losses that both print are compared by the Guard's own measure.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from flatout.tuning.guard import SIGMAS, loss_sigma
from tuning import tune

JOBS = Path(__file__).parent.parent / "tests" / "jobs"
NAMES = [
    "plain", "accumulation", "gan", "closure", "custom_optimizer", "no_loader", "dynamic_shapes",
    "hf_trainer", "lightning_fit", "accelerate_loop", "scaler", "own_compile", "several_losses",
    "methods", "eval_with_grad", "iterable", "workers", "dropout", "augment", "saves", "sched",
    "frozen", "ema_copy", "checkpointing", "float64", "rnn", "unguarded",
]  # fmt: skip
STEPS = 400
"""Enough for a trial; what is compared afterwards is the first part."""
COMPARED = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--skip", action="append", default=[], help="a boost left out")
    parser.add_argument("names", nargs="*", default=NAMES)
    arguments = parser.parse_args()
    rows = {}
    for name in arguments.names:
        rows[name] = one(name, arguments.budget, arguments.skip)
        sys.stderr.write(f"{name}: {rows[name]}\n")
    found = [row["speedup"] for row in rows.values() if row["plan_written"]]
    speeds = [*found, *(1.0 for row in rows.values() if not row["plan_written"])]
    record.write(
        "breadth",
        {
            "scripts": len(rows),
            "plans": len(found),
            "geometric_mean": round(math.exp(sum(map(math.log, speeds)) / len(speeds)), 3),
            "worst": round(min(speeds), 3),
            "failed_after_the_fact": [n for n, row in rows.items() if row["same_loss"] is False],
            "budget": arguments.budget,
            "left_out": arguments.skip,
            "rows": rows,
        },
    )


def one(name: str, budget: str, skip: list[str]) -> dict[str, Any]:
    """Tune one script, then train with and without the plan and compare the losses."""
    script = [str(JOBS / f"{name}.py"), "--steps"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        options = [word for boost in skip for word in ("--skip", boost)]
        document = tune([*script, str(STEPS)], place, "--budget", budget, *options)
        written = document["exit_code"] == 0
        sigma = None
        if written:
            words = [*script, str(COMPARED)]
            plain = losses([sys.executable, *words], place)
            under = [sys.executable, "-m", "flatout", "run", "--quiet", *words]
            sigma = loss_sigma(losses(under, place), plain, 0)
    return {
        "plan_written": written,
        "speedup": document["speedup"] if written else None,
        "interval": document["speedup_interval"] if written else None,
        "boosts": document["best"]["boosts"] if written and "boosts" in document["best"] else [
            trial["boosts"][-1] for trial in document["trials"]
            if trial["verdict"] == "kept" and trial["boosts"]
        ],
        "loss_sigma": round(sigma, 2) if sigma is not None else None,
        "same_loss": abs(sigma) <= SIGMAS if sigma is not None else None,
        "seconds": round(document["seconds"], 1),
    }  # fmt: skip


def losses(command: list[str], folder: Path) -> tuple[float, ...]:
    """The losses that a script prints, one a step."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return tuple(float(value) for value in re.findall(r"^step \d+ loss (\S+)$", done.stdout, re.M))


if __name__ == "__main__":
    main()
