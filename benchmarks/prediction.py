"""What a profile predicts of each boost against what it gains: how good are the rules?

python benchmarks/prediction.py             # some twenty minutes on two cores
python benchmarks/prediction.py --only text

For each example: the program as written, its profile, then each boost that applies, alone, in a
trial of its own. Predicted is what the findings that ask for the boost promise together, 1 where
none asks for it. The error of one boost is |predicted / measured - 1|.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from flatout.diagnosing import diagnose
from flatout.measuring.trial import Bench
from flatout.nouns.observer import Silent
from flatout.nouns.trial import Trial, Verdict
from flatout.running import command
from flatout.tuning.candidates import Choice, candidates
from flatout.tuning.search import Search

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
    """Every boost alone on one example."""
    folder.mkdir()
    os.chdir(folder)
    what = command.resolve([str(EXAMPLES / name / "train.py")])
    bench = Bench(what, folder / "trials", compile_cache=folder / "cache")
    deadline = time.monotonic() + 3600.0
    search = Search(bench, Choice(), Silent(), deadline, diagnose.predicted)
    search.baseline()
    search.profile()
    if search.predicted is None:
        raise SystemExit(f"{name}: the program could not be profiled")
    rows = []
    for candidate in candidates(search.facts, search.choice, search.predicted)[0]:
        trial = search._trial(candidate, candidate.variants[0])
        told = row_of(trial)
        sys.stdout.write(f"{name:7} {trial.tried:20} {told or trial.reason}\n")
        sys.stdout.flush()
        if told is not None:
            rows.append(told)
    return {"step_ms": search.untouched_figures.step_ms, "noise": search.noise, "boosts": rows}


def row_of(trial: Trial) -> dict[str, Any] | None:
    """One boost's figures; None: it was not measured."""
    if trial.gain is None or trial.predicted is None or trial.verdict is Verdict.SKIPPED:
        return None
    return {
        "boost": trial.tried,
        "predicted": round(trial.predicted, 3),
        "measured": round(trial.gain, 3),
        "error": round(abs(trial.predicted / trial.gain - 1), 3),
    }


if __name__ == "__main__":
    main()
