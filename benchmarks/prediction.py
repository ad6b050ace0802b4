"""What a profile predicts of each boost against what it gains: how good are the rules?

python benchmarks/prediction.py                 # all scripts of `breadth`: some two hours
python benchmarks/prediction.py --add nano_gpt  # beside the rows that are there
python benchmarks/prediction.py --half calibration

Each script is profiled, then tuned. Predicted is the largest gain that a finding which asks for
the boost promises; measured is what the boost's pairs of blocks showed when it was on alone: a
boost that the tuning tried on top of others is tuned once more by itself. A boost that no finding
asks for is predicted to gain nothing; it stands apart, as measured on top of what was kept.

The rules were set by looking at one half of the scripts; the other half is reported. Which half a
script belongs to depends on its name alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import record
from breadth import JOB_NAMES, JOB_STEPS, JOBS, STRANGERS, strangers

from tuning import tune

Half = Literal["calibration", "report"]
HALVES: tuple[Half, ...] = ("calibration", "report")
GOALS = {"median_error": 0.20, "within_1.3": 0.90, "sign_right": 0.95}
NOTHING = 1.03
"""What gains less than this gains nothing that matters (the least that `tune` keeps)."""
WITHIN = 1.3
ALONE_BUDGET = "25s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="scripts; all where none is named")
    parser.add_argument("--budget", default="45s")
    parser.add_argument("--add", action="store_true", help="keep the rows of earlier runs")
    parser.add_argument("--half", choices=HALVES, help="this half of the scripts only")
    arguments = parser.parse_args()
    rows = earlier() if arguments.add else {}
    for name in arguments.names or [*strangers(), *JOB_NAMES]:
        if arguments.half in (None, half(name)):
            rows[name] = of_script(name, arguments.budget)
            record.write("prediction", figures(rows))


def earlier() -> dict[str, dict[str, Any]]:
    """The rows of the results that are there, by script."""
    path = record.RESULTS / "prediction.json"
    if not path.exists():
        return {}
    scripts: dict[str, dict[str, Any]] = json.loads(path.read_text())["figures"]["scripts"]
    return scripts


def half(name: str) -> Half:
    """Which half a script belongs to."""
    return HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]


def of_script(name: str, budget: str) -> dict[str, Any]:
    """Every boost that was predicted or measured on one script."""
    stranger = STRANGERS / f"{name}.py"
    steps = ["--steps", str(JOB_STEPS)]
    words = [str(stranger)] if stranger.exists() else [str(JOBS / f"{name}.py"), *steps]
    with tempfile.TemporaryDirectory() as folder:
        asked, codes = predictions(words, Path(folder))
        document = tune(words, Path(folder), "--budget", budget)
        trials = [trial for trial in document["trials"] if trial["gain"] and trial["pairs"]]
        alone = {t["tried"]: t for t in trials if t["boosts"] == [t["tried"]]}
        for boost in asked:
            if boost not in alone:
                trial = tuned_alone(words, Path(folder), boost)
                alone |= {boost: trial} if trial else {}
    boosts = [
        row_of(boost, predicted, alone[boost]) | {"finding": codes[boost]}
        for boost, predicted in asked.items()
        if boost in alone
    ]
    others = [row_of(t["tried"], 1.0, t) for t in trials if t["tried"] not in asked]
    return {
        "half": half(name),
        "step_ms": document["baseline"]["step_ms"],
        "noise": document["noise"],
        "asked": boosts,
        "others": others,
        "unmeasured": sorted(set(asked) - set(alone)),
        "commit": record.commit(),
    }


def tuned_alone(words: list[str], folder: Path, boost: str) -> dict[str, Any] | None:
    """The trial of one boost on the script as written; None: none was measured."""
    document = tune(words, folder, "--budget", ALONE_BUDGET, "--only", boost)
    for trial in document["trials"]:
        if trial["tried"] == boost and trial["gain"] and trial["pairs"]:
            measured: dict[str, Any] = trial
            return measured
    return None


def predictions(words: list[str], folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Boost -> the largest gain that a finding promises of it, and that finding's code."""
    command = [sys.executable, "-m", "flatout", "profile", "--stop", "--json", "--no-bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr}")
    gains: dict[str, float] = {}
    codes: dict[str, str] = {}
    for finding in json.loads(done.stdout)["findings"]:
        boost, gain = finding.get("boost"), (finding.get("gain") or {}).get("predicted")
        if boost and gain and gain > gains.get(boost, 1.0):
            gains[boost], codes[boost] = gain, finding["code"]
    return gains, codes


def row_of(boost: str, predicted: float, trial: dict[str, Any]) -> dict[str, Any]:
    """One boost's figures."""
    measured = trial["gain"]
    ratio = predicted / measured
    return {
        "boost": boost,
        "predicted": round(predicted, 3),
        "measured": round(measured, 3),
        "pairs": trial["pairs"],
        "verdict": trial["verdict"],
        "error": round(abs(ratio - 1), 3),
        "factor": round(max(ratio, 1 / ratio), 3),
    }


def figures(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is reported: each half for itself."""
    return {
        "goal": GOALS,
        **{name: of_half([r for r in rows.values() if r["half"] == name]) for name in HALVES},
        "scripts": dict(sorted(rows.items())),
    }


def of_half(scripts: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one half: of boosts that a finding asks for, and of the others."""
    asked = [row for script in scripts for row in script["asked"]]
    others = [row for script in scripts for row in script["others"]]
    summary: dict[str, Any] = {"scripts": len(scripts), "asked": len(asked), "others": len(others)}
    if asked:
        summary |= {
            "median_error": statistics.median(row["error"] for row in asked),
            "within_1.3": statistics.mean(row["factor"] <= WITHIN for row in asked),
            "sign_right": statistics.mean(row["measured"] > 1 for row in asked),
        }
    if others:
        missed = [row["measured"] > NOTHING and row["verdict"] == "kept" for row in others]
        summary["others_that_gained"] = statistics.mean(missed)
    return summary
