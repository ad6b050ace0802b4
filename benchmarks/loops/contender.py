"""One loop on one job in a process of its own: `python contender.py JOB LOOP [quick]`.

Answers in JSON, a line each: first that it is there; then for each number N on its input, N steps:
their seconds and losses; for `profile N`, the operators that take the time of N steps.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
BEGAN = time.perf_counter()
TOP = 25
"""So many operators are told."""


def main(name: str, loop: str, quick: bool) -> None:
    # Libraries print what they like; the answers go another way.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from loops import jobs

    file, _, variant = loop.partition(":")
    job = jobs.make(name, quick)
    module = importlib.import_module(f"loops.{file}")
    steps = module.steps(job, variant) if variant else module.steps(job)
    answers.write(json.dumps({"pid": os.getpid()}) + "\n")
    answers.flush()
    for line in sys.stdin:
        *word, count = line.split()
        done = profile(steps, int(count)) if word else run(steps, int(count))
        answers.write(json.dumps(done) + "\n")
        answers.flush()


def run(steps: Iterator[Any], count: int) -> dict[str, Any]:
    began = time.perf_counter()
    losses = [next(steps) for _ in range(count)]
    losses = [float(loss) for loss in losses]
    now = time.perf_counter()
    return {"seconds": now - began, "losses": losses, "since_start": now - BEGAN}


def profile(steps: Iterator[Any], count: int) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        seconds = run(steps, count)["seconds"]
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_cpu_time_total)
    return {
        "steps": count,
        "step_ms": 1000 * seconds / count,
        "operators": [
            {
                "name": row.key[:80],
                "calls_per_step": row.count / count,
                "self_ms_per_step": round(row.self_cpu_time_total / 1000 / count, 3),
            }
            for row in rows[:TOP]
        ],
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "quick" in sys.argv[3:])
