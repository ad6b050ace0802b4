"""Every style of training loop: is it faster under its plan, and does it still learn the same?

python benchmarks/breadth.py                       # benchmarks/strangers and tests/jobs: hours
python benchmarks/breadth.py --budget 45s siren_image plain
python benchmarks/breadth.py --add dcgan_digits    # beside the rows that are there

Each script is tuned, then run for some steps as written and with the plan; the losses that both
print are compared by the Guard's own measure. Where an expert's version stands beside it
(`<name>_by_hand.py`), that is timed against the script as written, in turn: what share of what is
possible does flatout find?
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from flatout.tuning.losses import SIGMAS, loss_sigma
from tuning import tune

HERE = Path(__file__).parent
STRANGERS = HERE / "strangers"
JOBS = HERE.parent / "tests" / "jobs"
JOB_NAMES = [
    "plain", "accumulation", "gan", "closure", "custom_optimizer", "no_loader", "dynamic_shapes",
    "hf_trainer", "lightning_fit", "accelerate_loop", "scaler", "own_compile", "several_losses",
    "methods", "eval_with_grad", "iterable", "workers", "dropout", "augment", "saves", "sched",
    "frozen", "ema_copy", "checkpointing", "float64", "rnn", "unguarded",
]  # fmt: skip
JOB_STEPS = 20_000
"""A job of the tests takes milliseconds a step: enough of them for every decision."""
STEPS = 40
"""Steps whose losses are compared, and that an expert's version is timed for; the first quarter is
not timed ..."""
FEWEST_STEPS, MOST_S = 8, 20.0
"""... fewer of long steps: no more than take so many seconds as written."""
PAIRS = 2
STEP = re.compile(r"step (\d+) loss (\S+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--skip", action="append", default=[], help="a boost left out")
    parser.add_argument("--add", action="store_true", help="keep the rows of earlier runs")
    parser.add_argument("names", nargs="*", default=[*strangers(), *JOB_NAMES])
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = earlier() if arguments.add else {}
    for name in arguments.names:
        rows[name] = one(name, arguments.budget, arguments.skip)
        sys.stderr.write(f"{name}: {rows[name]}\n")
        write(rows, arguments)


def write(rows: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> None:
    """The figures of the scripts so far: hours of them are not lost with the last one."""
    speeds = [row["speedup"] or 1.0 for row in rows.values()]
    shares = [row["share_of_hand"] for row in rows.values() if row["share_of_hand"]]
    hands = [row["by_hand"] for row in rows.values() if row["by_hand"]]
    record.write(
        "breadth",
        {
            "scripts": len(rows),
            "plans": sum(row["plan_written"] for row in rows.values()),
            "geometric_mean": round(geometric_mean(speeds), 3),
            "worst": round(min(speeds), 3),
            "by_hand": len(hands),
            "geometric_mean_by_hand": round(geometric_mean(hands), 3) if hands else None,
            "geometric_mean_share_of_hand": round(geometric_mean(shares), 3) if shares else None,
            "failed_after_the_fact": [n for n, row in rows.items() if row["same_loss"] is False],
            "left_out": arguments.skip,
            "goal": {"geometric_mean": 1.8, "worst": 0.99, "share_of_hand": 0.85, "scripts": 50},
            "rows": rows,
        },
    )


def earlier() -> dict[str, dict[str, Any]]:
    """The rows of the results that are there: hours need not be spent in one go."""
    path = record.RESULTS / "breadth.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = document["figures"]["rows"]
    return found


def strangers() -> list[str]:
    """The scripts as written, without the experts' versions."""
    names = sorted(path.stem for path in STRANGERS.glob("*.py"))
    return [name for name in names if not name.endswith("_by_hand")]


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def one(name: str, budget: str, skip: list[str]) -> dict[str, Any]:
    """Tune one script, train with and without the plan, compare the losses, and time the expert."""
    stranger = STRANGERS / f"{name}.py"
    script = [str(stranger if stranger.exists() else JOBS / f"{name}.py")]
    whole = script if stranger.exists() else [*script, "--steps", str(JOB_STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        options = [word for boost in skip for word in ("--skip", boost)]
        document = tune(whole, place, "--budget", budget, *options)
        written = document["exit_code"] == 0
        sigma = None
        fitting = MOST_S / (document["baseline"]["step_ms"] / 1000)
        steps = int(min(STEPS, max(FEWEST_STEPS, fitting)))
        if written:
            short = [*script, "--steps", str(steps)]
            plain = losses([sys.executable, *short], place)
            under = [sys.executable, "-m", "flatout", "run", "--quiet", *short]
            sigma = loss_sigma(losses(under, place), plain, 0)
        hand = by_hand(stranger, place, steps)
    speedup = document["speedup"] if written else None
    return {
        "plan_written": written,
        "speedup": speedup,
        "interval": document["speedup_interval"] if written else None,
        "step_ms": document["baseline"]["step_ms"],
        "boosts": [boost["id"] for boost in document["boosts"]] if written else [],
        "by_hand": hand,
        "share_of_hand": round((speedup or 1.0) / hand, 3) if hand else None,
        "loss_sigma": round(sigma, 2) if sigma is not None else None,
        "same_loss": abs(sigma) <= SIGMAS if sigma is not None else None,
        "notes": document["notes"],
        "seconds": round(document["seconds"], 1),
        "budget": budget,
        "commit": record.commit(),
    }


def losses(command: list[str], folder: Path) -> tuple[float, ...]:
    """The losses that a script prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return tuple(float(value) for _, value in STEP.findall(done.stdout))


def by_hand(stranger: Path, folder: Path, steps: int) -> float | None:
    """How many times as fast the expert's version is; None: there is none."""
    expert = stranger.with_name(f"{stranger.stem}_by_hand.py")
    if not expert.exists():
        return None
    ratios = [step_s(stranger, folder, steps) / step_s(expert, folder, steps) for _ in range(PAIRS)]
    return round(statistics.median(ratios), 3)


def step_s(script: Path, folder: Path, steps: int) -> float:
    """Median time of a step, by when its line comes out."""
    words = [sys.executable, "-u", str(script), "--steps", str(steps)]
    times: list[float] = []
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = STEP.match(line)
            if found and int(found[1]) >= steps // 4:
                times.append(time.perf_counter())
    return statistics.median(b - a for a, b in itertools.pairwise(times))


if __name__ == "__main__":
    main()
