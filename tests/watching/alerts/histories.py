"""Histories of jobs and machines, built by hand: what a rule is given."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flatout.nouns.job_sample import PulseStep
from flatout.nouns.machine_sample import GpuSample, MachineSample
from flatout.watching.rules import Breach, JobHistory, RankHistory, RuleModule, TreeSample, View
from flatout.watching.steps import RankSteps

NOW = 100_000.0
GIB = 2**30
HEALTHY = GpuSample(
    0,
    "nvidia",
    utilization=0.95,
    memory_used_bytes=20 * GIB,
    memory_bytes=80 * GIB,
    power_w=600.0,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    clock_mhz=1900.0,
    clock_max_mhz=1980.0,
    throttles=(),
    temperature_c=60.0,
)
"""A GPU that trains."""


def steps(
    seconds: float,
    step_s: float = 0.1,
    wait: float = 0.0,
    flags: Callable[[int], int] = lambda step: 1,
    loss: Callable[[int], float | None] = lambda step: 2.0 / step,
    until_s: float = NOW,
    first: int = 1,
    duration: Callable[[int], float] | None = None,
    **more: Any,
) -> list[PulseStep]:
    """Steps that end evenly, the last one at `until_s`. wait: share of each step."""
    count = int(seconds / step_s)
    return [
        PulseStep(
            step=first + index,
            time_s=until_s - (count - 1 - index) * step_s,
            duration_s=duration(first + index) if duration else step_s,
            wait_s=wait * step_s,
            loss=loss(first + index),
            samples=32,
            flags=flags(first + index),
            **more,
        )
        for index in range(count)
    ]


def rank(
    taken: Sequence[PulseStep],
    number: int = 0,
    memory: Callable[[int], float] = lambda second: 2.0 * GIB,
    cpu: float | None = 1.0,
    lasted_s: int = 900,
    gpus: tuple[int, ...] = (),
) -> RankHistory:
    """A rank whose processes were sampled each second until now."""
    book = RankSteps(number, 1000 + number, 1)
    book.add(taken)
    history = book.history
    history.trees = [
        TreeSample(NOW - lasted_s + second, cpu, int(memory(second)))
        for second in range(lasted_s + 1)
    ]
    history.gpus = gpus
    return history


def job(*ranks: RankHistory, **more: Any) -> JobHistory:
    """A job that began two hours ago."""
    pids = frozenset(rank.pid for rank in ranks)
    settings = {"began_s": NOW - 7200, "folder": "/work", "pids": pids, **more}
    return JobHistory(id="7-1", pid=7, ranks=ranks, **settings)


def machine(
    lasted_s: int = 900, gpu: Callable[[int], GpuSample] | None = None, **more: Any
) -> list[MachineSample]:
    """One sample a second until now."""
    base = MachineSample(
        NOW,
        "node",
        cores=8.0,
        cpu_cores=1.0,
        cpu_steal=0.0,
        cpu_throttled=0.0,
        memory_bytes=64 * GIB,
        memory_used_bytes=8 * GIB,
        swap_in_bytes_per_s=0.0,
    )
    base = replace(base, **more)
    return [
        replace(
            base,
            time_s=NOW - lasted_s + second,
            gpus=(gpu(second),) if gpu is not None else base.gpus,
        )
        for second in range(lasted_s + 1)
    ]


def view(
    of: JobHistory | None = None, samples: Sequence[MachineSample] | None = None, now_s: float = NOW
) -> View:
    """What a rule is given at `now_s`."""
    history = machine(60) if samples is None else samples
    return View(now_s, "node", history, of, [of] if of is not None else [])


def breaches(module: RuleModule, seen: View) -> list[Breach]:
    """All that the rule answers."""
    return list(module.check(seen))


def fires(module: RuleModule, seen: View) -> bool:
    """Whether it begins an alert (after the time that it must hold)."""
    return any(breach.fires for breach in breaches(module, seen))


def random_job(seed: int) -> tuple[JobHistory, list[MachineSample]]:
    """A healthy job: noise, evaluations, checkpoints, epochs, a collector's sawtooth."""
    dice = random.Random(seed)
    step_s = 10 ** dice.uniform(-2, 0)
    wait = dice.uniform(0, 0.08)
    every = dice.randrange(40, 400)
    level = dice.uniform(0.5, 8) * GIB
    tooth = dice.uniform(0, 0.5) * GIB

    def duration(step: int) -> float:
        return step_s * dice.lognormvariate(0, 0.05) * (5 if step % every == 0 else 1)

    ranks = [
        rank(
            steps(
                900,
                step_s,
                wait,
                flags=lambda step: (
                    1 | (2 if step % every == 0 else 0) | (4 if step % 97 == 0 else 0)
                ),
                loss=lambda step: 1 + 1 / math.sqrt(step) + dice.gauss(0, 0.1),
                duration=duration,
            ),
            number,
            memory=lambda second: level + tooth * (second % 60) / 60,
            gpus=(number,),
        )
        for number in range(dice.choice((1, 1, 2)))
    ]
    samples = machine(
        900,
        gpu=lambda second: GpuSample(
            0,
            "nvidia",
            utilization=dice.uniform(0.6, 1.0),
            memory_used_bytes=int(20 * GIB + 0.1 * GIB * dice.random()),
            memory_bytes=80 * GIB,
            power_w=dice.uniform(300, 650),
            power_limit_w=700.0,
            power_limit_default_w=700.0,
            clock_mhz=dice.uniform(1600, 1980),
            clock_max_mhz=1980.0,
            throttles=("sw_power_cap",) if dice.random() < 0.7 else (),
            temperature_c=dice.uniform(40, 75),
        ),
        cpu_steal=dice.uniform(0, 0.03),
    )
    return job(*ranks), samples
