"""How much of what an expert reaches by hand does `flatout tune` find, in the time it is given?

python benchmarks/hand.py --budget 60s                     # all scripts that have a `_by_hand.py`
python benchmarks/hand.py --budget 30s --folder elsewhere  # pairs NAME.py, NAME_by_hand.py there
python benchmarks/hand.py --budget 60s --add vae_conv      # beside the rows that are there

Each script is tuned once. Then it, the expert's version and the script under the plan run in turn,
each timed from outside by `step_clock.py`: ratios are of runs that stand beside each other.
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
from breadth import geometric_mean

from flatout.commands import duration
from tuning import tune

HERE = Path(__file__).parent
FOLDERS = (HERE / "by_hand", HERE / "strangers")
ROUNDS, MOST_ROUNDS = 2, 3
RESTLESS = 1.1
"""More rounds are taken while those of one of the three are so many times apart."""
TIMED_S = 5.0
"""Seconds of steps that each run is timed for."""
GOALS = {"30s": None, "60s": 0.70, "120s": 0.85, "10m": 0.95}
"""Share of the hand, by budget."""
MATTERS = 1.3
"""No script is to be without a plan where the hand reaches this."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--folder", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--add", action="store_true", help="keep the rows of earlier runs")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    scripts = {
        path.name.removesuffix("_by_hand.py"): path.resolve()
        for folder in arguments.folder or FOLDERS
        for path in sorted(folder.glob("*_by_hand.py"))
    }
    name = f"hand-{arguments.budget}"
    rows = record.rows(name, arguments.out) if arguments.add else {}
    for script in arguments.names or scripts:
        try:
            rows[script] = one(scripts[script], arguments.budget)
        except RuntimeError as error:
            sys.stderr.write(f"{script}: left out: {error}\n")
            continue
        sys.stderr.write(f"{script}: {rows[script]}\n")
        record.write(name, figures(rows, arguments.budget), arguments.out)


def figures(rows: dict[str, Any], budget: str) -> dict[str, Any]:
    """The rows and what they come to."""
    shares = [row["plan"] / row["hand"] for row in rows.values()]
    return {
        "budget": budget,
        "scripts": len(rows),
        "hand": round(geometric_mean([row["hand"] for row in rows.values()]), 3),
        "plan": round(geometric_mean([row["plan"] for row in rows.values()]), 3),
        "share_of_hand": round(geometric_mean(shares), 3),
        "goal": GOALS.get(budget),
        "worst": round(min(row["plan"] for row in rows.values()), 3),
        "without_a_plan": [
            name for name, row in rows.items() if row["hand"] >= MATTERS and not row["boosts"]
        ],
        "late": [name for name, row in rows.items() if row["seconds"] > 1.05 * row["budget_s"]],
        "first_kept_within_15_s": sum(
            row["first_kept_s"] is not None and row["first_kept_s"] <= 15 for row in rows.values()
        ),
        "rows": rows,
    }


def one(by_hand: Path, budget: str) -> dict[str, Any]:
    """Tune one script, then time it as written, by hand and under its plan, in turn."""
    script = by_hand.with_name(by_hand.name.replace("_by_hand", ""))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        document = tune([str(script)], place, "--budget", budget)
        planned = document["exit_code"] == 0
        times: dict[str, list[float]] = {"written": [], "hand": [], "plan": []}
        while len(times["written"]) < ROUNDS or (
            len(times["written"]) < MOST_ROUNDS and any(map(restless, times.values()))
        ):
            for kind, path in (("written", script), ("hand", by_hand), ("plan", script)):
                if kind != "plan" or planned:
                    times[kind].append(step_ms(path, place, kind == "plan"))
        first_kept_s = first_keep(place)
    written = statistics.median(times["written"])
    plan = written / statistics.median(times["plan"]) if planned else 1.0
    hand = written / statistics.median(times["hand"])
    return {
        "written_ms": round(written, 3),
        "hand": round(hand, 3),
        "plan": round(plan, 3),
        "share": round(plan / hand, 3),
        "told": document["speedup"],
        "boosts": [boost["id"] for boost in document["boosts"]] if planned else [],
        "tried": {
            trial["boosts"][-1] if trial["boosts"] else "": [trial["verdict"], trial["gain"]]
            for trial in document["trials"]
            if trial["verdict"] != "skipped"
        },
        "times_ms": {kind: [round(value, 2) for value in values] for kind, values in times.items()},
        "first_kept_s": first_kept_s,
        "seconds": round(document["seconds"], 1),
        "budget_s": duration("--budget", budget),
        "notes": document["notes"],
        "commit": record.commit(),
    }


def restless(times: list[float]) -> bool:
    """Whether one more round may change their median."""
    return bool(times) and max(times) > RESTLESS * min(times)


def step_ms(script: Path, folder: Path, under_plan: bool) -> float:
    """Mean time of a step, timed from outside."""
    clock = folder / "clock.json"
    clock.unlink(missing_ok=True)
    words = [str(HERE / "step_clock.py"), str(TIMED_S), str(script)]
    command = [sys.executable, *words]
    if under_plan:
        command = [sys.executable, "-m", "flatout", "run", "--quiet", *words]
    environment = {**os.environ, "STEP_CLOCK": str(clock)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    if not clock.exists():
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}")
    told: dict[str, float] = json.loads(clock.read_text())
    return told["step_ms"]


def first_keep(folder: Path) -> float | None:
    """Seconds from the program's first step to the first verdict that keeps something."""
    for path in sorted(folder.glob(".flatout/runs/*/live-1/*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        times = [r["elapsed_s"] for r in records if r.get("verdict") == "kept"]
        if times:
            return round(float(times[0]), 1)
    return None


if __name__ == "__main__":
    main()
