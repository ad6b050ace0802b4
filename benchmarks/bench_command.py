"""How long `flatout bench --quick` takes here, and how far its figures spread from run to run.

The goal: 20 seconds at most. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import record

GOAL_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="also once with all sizes")
    arguments = parser.parse_args()
    quick = [measured("--quick") for _ in range(arguments.runs)]
    figures: dict[str, Any] = {
        "quick_s": spread([seconds for seconds, _ in quick]),
        "goal_quick_s": GOAL_S,
        "runs": arguments.runs,
        "ceilings": {
            name: {"unit": unit, **spread(values)} for (name, unit), values in table(quick).items()
        },
    }
    if arguments.full:
        seconds, document = measured()
        figures["full_s"] = round(seconds, 1)
        figures["full"] = {name: value for (name, _), value in rows(document).items()}
    record.write("bench_command", figures)


def measured(*options: str) -> tuple[float, dict[str, Any]]:
    """Seconds and document of one run; nothing of it is kept in the user's cache."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flatout", "bench", "--json", *options]
        began = time.perf_counter()
        done = subprocess.run(
            command,
            env={**os.environ, "FLATOUT_CACHE": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
    assert done.returncode in (0, 1), command  # 1: the answer is "problems found"
    document: dict[str, Any] = json.loads(done.stdout)
    return seconds, document


def rows(document: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (f"{one['id']} {one['device']}", one["unit"]): one["value"]
        for one in document["ceilings"]
        if one["value"] is not None
    }


def table(runs: list[tuple[float, dict[str, Any]]]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for _, document in runs:
        for key, value in rows(document).items():
            found.setdefault(key, []).append(value)
    return found


def spread(values: list[float]) -> dict[str, float]:
    """The median, and how far apart lowest and highest are as a part of it."""
    middle = statistics.median(values)
    apart = (max(values) - min(values)) / middle if middle else 0.0
    return {"median": round(middle, 4), "spread": round(apart, 3)}


if __name__ == "__main__":
    main()
