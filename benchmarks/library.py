"""The library against other ways to train the same job, interleaved, on the CPU.

python benchmarks/library.py                 # about ten minutes on two cores
python benchmarks/library.py --only gpt
python benchmarks/library.py --quick         # only whether all loops run and learn alike

For each job: six loops (`loops/`), each in a process of its own, take turns of some steps; all
others are suspended meanwhile. Start-up, compiling and warm-up are reported apart; loading of data
is part of a step. All loops must have come to the same loss. Where a goal is missed, the file says
which operators take the time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import record
from loops import arena
from loops.arena import Contender

OURS = ("flatout_loop", "flatout_loop:compiled")
"""As it chooses by itself, and with `compile=True`; the goals are for the first."""
LOOPS = ("naive", *OURS, "expert", "accelerate_loop", "fabric_loop")
JOBS = ("resnet", "gpt", "bert")
GOALS = {
    "resnet": {"naive": 4.0, "accelerate_loop": 1.1, "fabric_loop": 1.1, "expert": 0.99},
    "gpt": {"naive": 2.0, "accelerate_loop": 1.1, "fabric_loop": 1.1, "expert": 0.99},
    "bert": {"naive": 2.0, "accelerate_loop": 1.1, "fabric_loop": 1.1, "expert": 0.99},
}
"""flatout is to be so many times as fast."""
WARM = {"resnet": 24, "gpt": 6, "bert": 6}
"""Steps that do not count: compiling, and one epoch of pictures that are kept once decoded."""
ROUNDS = 14
STEPS = {"resnet": 5, "gpt": 3, "bert": 5}
"""Of one turn: one to two seconds of the slowest."""
TOLERANCE = {"resnet": 0.05, "gpt": 0.02, "bert": 0.03}
"""The mean loss of the last third of the steps may differ by so much from the naive loop's: GPT
sees the same batches in all loops, BERT the same texts under other masks and dropout, ResNet the
same pictures in another order and under other augmentation."""
PROFILED = 3
"""Steps whose operators are told."""


def measure(job: str, quick: bool, logs: Path) -> dict[str, Any]:
    """All loops on one job."""
    with arena.contenders(job, LOOPS, quick, logs) as started:
        if quick:
            arena.rounds(started, warm=12, count=2, steps=3)
        else:
            arena.rounds(started, WARM[job], ROUNDS, STEPS[job])
        gap = arena.disagreement(started)
        by_name = {one.loop: one for one in started}
        against = {name: versus(job, by_name, OURS[0], name) for name in GOALS[job]}
        figures = {
            "loops": {one.loop: arena.summary(one) for one in started},
            "against": against,
            "against_compiled": {name: versus(job, by_name, OURS[1], name) for name in GOALS[job]},
            "loss_disagreement": gap,
            "loss_tolerance": TOLERANCE[job],
            "steps": len(started[0].losses),
        }
        if gap > TOLERANCE[job]:
            raise SystemExit(f"{job}: the loops do not learn alike: {figures}")
        missed = [name for name, found in against.items() if not found["met"]]
        if missed and not quick:
            figures["profiles"] = profiles(by_name, missed)
    return figures


def versus(job: str, by_name: dict[str, Contender], ours: str, name: str) -> dict[str, Any]:
    found = arena.ratio(by_name[name], by_name[ours])
    goal = GOALS[job][name]
    return {**found, "goal": goal, "met": found["ratio"] >= goal}


def told(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['ratio']:.2f}x ({low:.2f} to {high:.2f}), goal {found['goal']}x"


def profiles(by_name: dict[str, Contender], missed: list[str]) -> dict[str, Any]:
    """Where the time goes, in flatout's loop and in those beside which it is too slow."""
    return {
        name: by_name[name].ask(f"profile {PROFILED}")
        for name in (OURS[0], *(other for other in missed if other != "naive"))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=JOBS)
    parser.add_argument("--quick", action="store_true", help="tiny jobs; nothing is written")
    parser.add_argument("--logs", type=Path, help="folder for what the loops print")
    arguments = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        logs = arguments.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        for job in [arguments.only] if arguments.only else JOBS:
            figures[job] = measure(job, arguments.quick, logs)
            for ours in ("against", "against_compiled"):
                for name, found in figures[job][ours].items():
                    sys.stdout.write(f"{job:7} {ours:17} {name:16} {told(found)}\n")
            sys.stdout.flush()
    if not arguments.quick:
        name = f"library-{arguments.only}" if arguments.only else "library"
        record.write(name, figures)


if __name__ == "__main__":
    main()
