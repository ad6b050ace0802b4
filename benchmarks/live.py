"""`flatout run --live` from a cold start to the end of the examples' default training.

python benchmarks/live.py                # some fifteen minutes on two cores
python benchmarks/live.py --only text --pairs 1

As written and with `--live` in turn, whole processes: all that the tuning costs is in the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("images", "text", "bert")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--pairs", type=int, default=1)
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else NAMES
    figures = {name: example(name, arguments.pairs) for name in names}
    figures = {**figures, "goal": {"total": 1.6, "lost_late_share": 0.03}}
    record.write(f"live-{arguments.only}" if arguments.only else "live", figures)


def example(name: str, pairs: int) -> dict[str, Any]:
    """Total times of one example, and what was decided in the last run."""
    script = str(EXAMPLES / name / "train.py")
    ratios, documents = [], []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            words = [script, "--out", str(Path(folder) / "out")]
            written_s, _ = timed([sys.executable, *words], folder)
            live = [sys.executable, "-m", "flatout", "run", "--live", "--json", *words]
            live_s, out = timed(live, folder)
            ratios.append(written_s / live_s)
            documents.append(json.loads(out))
            sys.stderr.write(f"{name}: {written_s:.1f} s as written, {live_s:.1f} s live\n")
    told = documents[-1]["live"]
    return {
        "total": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "as_written_s": round(written_s, 1),
        "live_s": round(live_s, 1),
        "step_ratio": told["speedup"],
        "boosts": [boost["id"] for boost in told["boosts"]],
        "saved_s": told["saved_s"],
        "lost_s": told["lost_s"],
        "lost_late_share": round(told["lost_late_s"] / max(1.0, live_s - 60), 4),
        "decisions": {
            row["tried"]: [row["verdict"], row["gain"], row["pairs"], round(row["wall_s"], 1)]
            for row in told["trials"]
            if row["pairs"]
        },
    }


def timed(command: list[str], folder: str) -> tuple[float, str]:
    """(wall seconds, what it printed on stdout)."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    return time.perf_counter() - began, done.stdout


if __name__ == "__main__":
    main()
