"""False alarms: every script of tests/jobs under `flatout run`, and an hour of a healthy job.

The scripts that are meant to fail or hang tell their end; everything else that fires is false.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import record

from flatout.nouns.errors import UserError
from flatout.nouns.job_sample import PulseStep
from flatout.nouns.machine_sample import MachineSample
from flatout.watching.alert_book import AlertBook
from flatout.watching.replay import Replay
from flatout.watching.rules import JobHistory, TreeSample, View
from flatout.watching.steps import RankSteps
from flatout.watching.thinned import Thinned

JOBS = Path(__file__).parent.parent / "tests/jobs"
LIMIT_S = 90
GIB = 2**30
MEANT = {"hangs": ("HANG001", "END001")}
"""Scripts that are made for an alert."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of scripts")
    arguments = parser.parse_args()
    rows = {}
    for script in sorted(JOBS.glob("*.py")):
        if script.stem.startswith("test_") or (
            arguments.only and script.stem not in arguments.only
        ):
            continue
        rows[script.stem] = watched(script)
        sys.stderr.write(f"{script.stem}: {rows[script.stem]}\n")
    false = {
        name: codes
        for name, row in rows.items()
        if (codes := [c for c in row["alerts"] if c not in MEANT.get(name, meant(row))])
    }
    record.write(
        "monitor_alarms",
        {"scripts": len(rows), "false": false, "hour": hour(), "rows": rows},
    )


def meant(row: dict[str, Any]) -> tuple[str, ...]:
    """What a script that fails is told for."""
    return () if row["exit_code"] == 0 else ("END001",)


def watched(script: Path) -> dict[str, Any]:
    """The alerts that fired while the script ran, and its exit code; None: ended at the limit."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flatout", "run", "--quiet", "--no-plan", str(script)]
        environ = dict(os.environ, OMP_NUM_THREADS="1")
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            code: int | None = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
            process.terminate()
            process.wait()
        codes: set[str] = set()
        for run in Path(folder).glob(".flatout/runs/*-run"):
            try:
                frames = list(Replay(run).frames())
            except UserError:
                continue
            codes |= {alert.code for frame in frames for alert in frame.alerts}
        return {"exit_code": code, "alerts": sorted(codes)}


def hour(seconds: int = 3600, seed: int = 0) -> dict[str, Any]:
    """A healthy job's hour, second by second: noise, evaluations, checkpoints, a collector."""
    dice = random.Random(seed)
    book, rank = AlertBook(), RankSteps(0, 7)
    machines: Thinned[MachineSample] = Thinned()
    base = MachineSample(0.0, "n", cores=8.0, cpu_cores=2.0, cpu_steal=0.0, memory_bytes=64 * GIB)
    fired: set[str] = set()
    step, now_s, next_s = 0, 1e9, 1e9
    job = JobHistory("7-1", 7, now_s, folder="/work")
    for second in range(seconds):
        now_s += 1.0
        while next_s <= now_s:
            step += 1
            took = 0.12 * dice.lognormvariate(0, 0.08) + (20.0 if step % 3000 == 0 else 0.0)
            next_s += took
            flags = 1 | (2 if step % 3000 == 0 else 0) | (64 if step % 3000 == 1 else 0)
            loss = 1 + 5 / (1 + step / 500) + dice.gauss(0, 0.1)
            rank.add([PulseStep(step, next_s, took, 0.01, loss, 32, flags)])
        memory = int(4 * GIB + 0.7 * GIB * (second % 97) / 97)
        rank.add_tree(TreeSample(now_s, 1.0, memory))
        job.ranks = [rank.history]
        history = machines.add(replace(base, time_s=now_s, memory_used_bytes=memory))
        views = [View(now_s, "n", history, None, [job]), View(now_s, "n", history, job, [job])]
        fired |= {alert.code for alert in book.update(views) if alert.state == "firing"}
    return {"seconds": seconds, "steps": step, "alerts": sorted(fired), "notes": book.notes}


if __name__ == "__main__":
    main()
