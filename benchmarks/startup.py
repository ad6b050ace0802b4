"""How long `flatout --help` takes, beside an empty Python: fresh processes, in turn."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import record

GOAL_MS = 150.0
COMMANDS = {
    "help_ms": [sys.executable, "-m", "flatout", "--help"],
    "python_ms": [sys.executable, "-c", "pass"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=31)
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(2):  # files into the page cache, byte code onto the disk
        for command in COMMANDS.values():
            wall_ms(command)
    for _ in range(runs):
        for name, command in COMMANDS.items():
            times[name].append(wall_ms(command))
    figures = {name: spread(values) for name, values in times.items()}
    record.write("startup", {**figures, "runs": runs, "goal_help_ms": GOAL_MS})


def wall_ms(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "lowest": round(min(values), 2),
        "highest": round(max(values), 2),
    }


if __name__ == "__main__":
    main()
