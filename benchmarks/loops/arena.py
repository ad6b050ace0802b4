"""Contenders run in turn, each in its own process, the others suspended: what drifts drifts alike.

A round is one turn of each contender, in an order that rotates. Ratios are taken within a round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from flatout.tuning.confirm import interval

CONTENDER = Path(__file__).parent / "contender.py"
TAIL = 2000
"""Characters of a failed contender's output that are shown."""


class Contender:
    """One started loop; suspended but for its turns."""

    def __init__(self, job: str, loop: str, quick: bool, log: Path) -> None:
        self.loop, self.log = loop, log
        self.seconds: list[float] = []
        """Of one step, each turn's mean."""
        self.losses: list[float] = []
        self.start_s = 0.0
        """From the start of the process to the end of the first step."""
        words = [sys.executable, str(CONTENDER), job, loop, *(["quick"] if quick else [])]
        with log.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # all loops on the CPU
            )
        self.own = psutil.Process(self.process.pid)

    def begin(self) -> None:
        """Wait until it is there, and take the first step."""
        self._answer()
        self.turn(1, counts=False)

    def turn(self, steps: int, counts: bool = True) -> None:
        """`steps` steps alone on the machine; their time counts or not, their losses do."""
        done = self.ask(str(steps))
        self.losses += done["losses"]
        if counts:
            self.seconds.append(done["seconds"] / steps)
        elif not self.start_s:
            self.start_s = done["since_start"]

    def ask(self, words: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self._each("resume")
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        done = self._answer()
        self._each("suspend")
        # A process that runs stops when the system next looks at it.
        while self.own.status() == psutil.STATUS_RUNNING:
            time.sleep(0.001)
        return done

    def close(self) -> None:
        family = self._family()
        for one in family:
            one.kill()
        psutil.wait_procs(family, timeout=10)
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            tail = self.log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
            raise SystemExit(f"the loop {self.loop} failed:\n{tail}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _family(self) -> list[psutil.Process]:
        """The process and its loader workers."""
        try:
            return [self.own, *self.own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _each(self, what: str) -> None:
        for one in self._family():
            try:
                getattr(one, what)()
            except psutil.NoSuchProcess:
                continue


@contextmanager
def contenders(
    job: str, loops: Sequence[str], quick: bool, logs: Path
) -> Iterator[list[Contender]]:
    """All loops of a job, started one after the other and warmed up by nothing but their start."""
    with ExitStack() as stack:
        started = []
        for loop in loops:
            one = Contender(job, loop, quick, logs / f"{job}-{loop.replace(':', '-')}.log")
            stack.callback(one.close)
            one.begin()
            started.append(one)
        yield started


def rounds(started: Sequence[Contender], warm: int, count: int, steps: int) -> None:
    """`warm` steps that do not count, then `count` rounds of `steps` steps each."""
    for one in started:
        one.turn(warm, counts=False)
    for number in range(count):
        first = number % len(started)
        for one in (*started[first:], *started[:first]):
            one.turn(steps)


def ratio(slow: Contender, fast: Contender) -> dict[str, Any]:
    """How many times faster `fast` is: median over the rounds, and its 95 % interval."""
    pairs = tuple(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))
    low, high = interval(pairs)
    return {"ratio": statistics.median(pairs), "interval": [low, high], "rounds": len(pairs)}


def summary(one: Contender) -> dict[str, Any]:
    return {
        "step_ms": 1000 * statistics.median(one.seconds),
        "start_s": one.start_s,
        "first_loss": one.losses[0],
        "last_loss": last_loss(one),
    }


def last_loss(one: Contender) -> float:
    """Mean loss of the last third of all steps."""
    return statistics.fmean(one.losses[-max(1, len(one.losses) // 3) :])


def disagreement(started: Sequence[Contender]) -> float:
    """Largest relative difference of the last losses from the first contender's."""
    first = last_loss(started[0])
    return max(abs(last_loss(one) / first - 1) for one in started)
