"""What a profile predicts of each boost against what it gains: how good are the rules?

python benchmarks/prediction.py             # some ten minutes on two cores
python benchmarks/prediction.py --only text

For each example: `flatout profile`, then `flatout tune`. Predicted is the largest gain that a
finding which asks for the boost promises, 1 where none asks for it; measured is what the boost's
pairs of blocks showed, on top of what was kept before it. The error is |predicted / measured - 1|.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from tuning import tune

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("images", "text", "bert")
GOAL = 0.20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=NAMES)
    chosen = parser.parse_args().only
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in [chosen] if chosen else NAMES:
            figures[name] = of_example(name, Path(folder) / name)
    rows = [row for found in figures.values() for row in found["boosts"]]
    asked = [row["error"] for row in rows if row["predicted"] != 1.0]
    figures["median_error"] = statistics.median(row["error"] for row in rows)
    figures["median_error_where_a_finding_asks"] = statistics.median(asked) if asked else None
    figures["boosts"] = len(rows)
    figures["goal"] = GOAL
    record.write(f"prediction-{chosen}" if chosen else "prediction", figures)


def of_example(name: str, folder: Path) -> dict[str, Any]:
    """Every boost that was measured on one example."""
    folder.mkdir()
    script = str(EXAMPLES / name / "train.py")
    predicted = predictions(script, folder)
    document = tune([script], folder, "--budget", "5m")
    rows = []
    for trial in document["trials"]:
        if trial["gain"] is None or not trial["pairs"]:
            continue
        row = row_of(trial["tried"], predicted.get(trial["tried"], 1.0), trial["gain"])
        sys.stdout.write(f"{name:7} {row}\n")
        sys.stdout.flush()
        rows.append(row)
    figures = document["baseline"]
    return {"step_ms": figures["step_ms"], "noise": document["noise"], "boosts": rows}


def predictions(script: str, folder: Path) -> dict[str, float]:
    """Boost -> the largest gain that a finding promises of it."""
    command = [sys.executable, "-m", "flatout", "profile", "--stop", "--json", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr}")
    found: dict[str, float] = {}
    for finding in json.loads(done.stdout)["findings"]:
        gain = (finding.get("gain") or {}).get("predicted")
        if finding.get("boost") and gain:
            found[finding["boost"]] = max(found.get(finding["boost"], 1.0), gain)
    return found


def row_of(boost: str, predicted: float, measured: float) -> dict[str, Any]:
    """One boost's figures."""
    return {
        "boost": boost,
        "predicted": round(predicted, 3),
        "measured": round(measured, 3),
        "error": round(abs(predicted / measured - 1), 3),
    }


if __name__ == "__main__":
    main()
