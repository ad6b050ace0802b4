"""The real decisions of a tuning on a simulated GPU, whose true step times are those of an H200.

python benchmarks/search_simulation.py          # a minute
python benchmarks/search_simulation.py --runs 20

How near is what is kept after 60 s, the program's start included, to the best set of boosts? And
how often is anything kept where no boost makes any difference?
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the GPU is that of the tests
BUDGET_S = 60.0
NOISES = (0.01, 0.05, 0.2)
NEAR = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="of each noise")
    parser.add_argument("--folder", type=Path, default=record.RESULTS)
    arguments = parser.parse_args()
    rows = {f"{noise:.0%}": simulated(noise, arguments.runs) for noise in NOISES}
    goal = {"share_of_best": NEAR, "false_keeps": 0.01, "budget_s": BUDGET_S}
    record.write("search_simulation", {"goal": goal, "noise": rows}, arguments.folder)


def simulated(noise: float, runs: int) -> dict[str, Any]:
    """With this noise of a step: the share of the best speed, and what was kept by mistake."""
    from simulated_gpu import best_ms, true_ms, tuned

    found = [tuned(noise, seed, BUDGET_S) for seed in range(runs)]
    shares = [best_ms() / true_ms(frozenset(o.id for o in gpu.on())) for gpu in found]
    useless = [tuned(noise, seed, BUDGET_S, useless=True) for seed in range(runs)]
    return {
        "runs": runs,
        "share_of_best": round(statistics.median(shares), 3),
        "worst": round(min(shares), 3),
        "near": sum(share >= NEAR for share in shares) / runs,
        "ended_by_s": round(max(gpu.clock for gpu in found), 1),
        "false_keeps": round(sum(bool(gpu.on()) for gpu in useless) / runs, 4),
    }


if __name__ == "__main__":
    main()
