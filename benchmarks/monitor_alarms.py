"""Alarms, right and false: every script of tests/jobs under `flatout run`, and jobs made by hand.

The scripts that are meant to fail or hang tell their end; everything else that fires is false. By
hand: an hour of a healthy job, and the same job with one fault for each rule, second by second.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from flatout.nouns.errors import UserError
from flatout.nouns.job_sample import PulseStep
from flatout.nouns.machine_sample import DiskSample, GpuSample, GpuUse, MachineSample
from flatout.watching import rules
from flatout.watching.alert_book import AlertBook
from flatout.watching.recording import frames as frames_of
from flatout.watching.rules import JobHistory, TreeSample, View
from flatout.watching.steps import RankSteps
from flatout.watching.thinned import Thinned

JOBS = Path(__file__).parent.parent / "tests/jobs"
LIMIT_S = 90
GIB = 2**30
PIDS = (1000, 1001)
BEGINS_S = 900
ALSO = {"IDLE001": ("HANG001",), "HANG001": ("IDLE001",)}
"""What is true beside a planted fault."""
MEANT = {"hangs": ("HANG001", "END001")}
"""Scripts that are made for an alert."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of scripts")
    arguments = parser.parse_args()
    by_hand = {"hour": hour(), "planted": planted()}
    sys.stderr.write(f"{by_hand}\n")
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
    found = [code for code, told in by_hand["planted"].items() if told["told_after_s"] is not None]
    figures = {"scripts": len(rows), "false": false, "found": len(found), **by_hand, "rows": rows}
    record.write("monitor_alarms", figures)


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
                frames = list(frames_of(run))
            except UserError:
                continue
            codes |= {alert.code for frame in frames for alert in frame.alerts}
        return {"exit_code": code, "alerts": sorted(codes)}


class Story:
    """A job of two ranks on a GPU each, second by second: noise, evaluations, checkpoints.

    fault: the code of the rule whose fault begins after `BEGINS_S`; empty: the job is healthy.
    """

    def __init__(self, fault: str = "", seed: int = 0) -> None:
        self.fault, self.dice = fault, random.Random(seed)
        self.book = AlertBook()
        self.ranks = [RankSteps(number, PIDS[number], 2) for number in range(2)]
        self.machines: Thinned[MachineSample] = Thinned()
        self.begin_s = self.now_s = self.next_s = 1e9
        self.step = 0
        self.job = JobHistory("7-1", 7, self.now_s, folder="/work", pids=frozenset(PIDS))
        self.fired: dict[str, float] = {}
        """When each rule fired first, in seconds since the begin."""

    def run(self, seconds: int) -> dict[str, Any]:
        """What fired in so many seconds, and how long after the fault began."""
        for second in range(seconds):
            self.now_s += 1.0
            self._second(second, self.fault if second >= BEGINS_S else "")
        codes = {code: round(at_s - BEGINS_S) for code, at_s in self.fired.items()}
        notes = self.book.notes
        if not self.fault:
            return {"seconds": seconds, "steps": self.step, "alerts": sorted(codes), "notes": notes}
        others = sorted(codes.keys() - {self.fault, *ALSO.get(self.fault, ())})
        return {"told_after_s": codes.get(self.fault), "others": others, "notes": notes}

    def _second(self, second: int, fault: str) -> None:
        while self.next_s <= self.now_s and fault not in ("HANG001", "IDLE001", "END001"):
            self._take_step(fault)
        memory = int(4 * GIB + 0.7 * GIB * (second % 97) / 97)
        if fault == "LEAK001":
            memory += int(12 * GIB * (second - BEGINS_S) / 3600)
        cores = 0.0 if fault in ("HANG001", "IDLE001") else 1.0
        for rank in self.ranks:
            rank.history.gpus = (rank.history.rank,)
            rank.add_tree(TreeSample(self.now_s, cores, memory))
        if fault == "END001":
            self.job.ended_s, self.job.exit_code = self.now_s, 1
        self.job.ranks = [rank.history for rank in self.ranks]
        history = self.machines.add(self._machine(memory, fault))
        views = [View(self.now_s, "n", history, job, [self.job]) for job in (None, self.job)]
        for alert in self.book.update(views):
            if alert.state == "firing":
                self.fired.setdefault(alert.code, second)

    def _take_step(self, fault: str) -> None:
        self.step += 1
        pause_s = 20.0 if self.step % 3000 == 0 else 0.0
        took_s = 0.12 * self.dice.lognormvariate(0, 0.08) * (1.5 if fault == "SLOW001" else 1)
        self.next_s += took_s + pause_s
        flags = 1 | (2 if pause_s else 0) | (64 if self.step % 3000 == 1 else 0)
        loss = 1 + 5 / (1 + self.step / 500) + self.dice.gauss(0, 0.1)
        wait_s = 0.4 * took_s if fault == "WAIT001" else 0.01
        for rank in self.ranks:
            own_s = 0.04 * self.dice.lognormvariate(0, 0.1)
            own_s += 0.03 if fault == "RANK001" and rank.history.rank else 0
            told = math.nan if fault == "NAN001" else loss
            duration_s = took_s + pause_s
            step = PulseStep(
                self.step, self.next_s, duration_s, wait_s, told, 32, flags, shapes=1, own_s=own_s
            )
            rank.add([step])

    def _machine(self, memory: int, fault: str) -> MachineSample:
        room = 1 if fault == "DISK001" else 500
        return MachineSample(
            self.now_s,
            "n",
            gpus=tuple(self._gpu(number, fault) for number in range(2)),
            cores=8.0,
            cpu_cores=2.0,
            cpu_steal=0.3 if fault == "SHARE001" else self.dice.uniform(0, 0.02),
            memory_bytes=64 * GIB,
            memory_used_bytes=2 * memory,
            disks=(DiskSample("/work", 10**12, room * 10**9),),
        )

    def _gpu(self, number: int, fault: str) -> GpuSample:
        idle, hot = fault in ("HANG001", "IDLE001"), fault == "HEAT001" and number == 0
        return GpuSample(
            number,
            "nvidia",
            utilization=0.0 if idle else self.dice.uniform(0.8, 1.0),
            memory_used_bytes=20 * GIB,
            memory_bytes=80 * GIB,
            power_w=90.0 if idle else self.dice.uniform(450, 690),
            power_limit_w=700.0,
            power_limit_default_w=700.0,
            temperature_c=92.0 if hot else 65.0,
            clock_mhz=1300.0 if hot else self.dice.uniform(1850, 1980),
            clock_max_mhz=1980.0,
            throttles=("sw_thermal_slowdown",) if hot else ("sw_power_cap",),
            xids=(79,) if fault == "FAULT001" and number == 0 else (),
            processes=(GpuUse(PIDS[number], 19 * GIB, 0.9, alive=True),),
        )


def hour(seconds: int = 3600) -> dict[str, Any]:
    """A healthy job's hour."""
    return Story().run(seconds)


def planted(seconds: int = 2400) -> dict[str, Any]:
    """One fault for each rule, after a quarter of an hour of health."""
    codes = [module.RULE.code for module in rules.every()]
    return {code: Story(code).run(seconds) for code in codes}


if __name__ == "__main__":
    main()
