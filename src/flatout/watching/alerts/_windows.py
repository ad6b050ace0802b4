"""Helpers for several rules: steps without pauses, trends, the loop's own gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, median

from flatout.nouns.job_sample import PulseStep
from flatout.watching.rules import JobHistory, RankHistory
from flatout_agent.wire import pulse

UNUSUAL = pulse.COMPILED | pulse.TUNING | pulse.EVALUATED | pulse.SAVED | pulse.SKIPPED
WARM_UP = 20
MOST_STEPS = 4000


def usual(steps: Sequence[PulseStep]) -> list[PulseStep]:
    """Steps that only trained: after warm-up, without pause, compilation or tuning."""
    return [
        step
        for step in steps
        if not step.flags & UNUSUAL and step.step > WARM_UP and step.duration_s > 0
    ]


def since(rank: RankHistory, begin_s: float) -> list[PulseStep]:
    """The rank's steps that ended after `begin_s`, the newest `MOST_STEPS` of them."""
    chosen: list[PulseStep] = []
    for step in reversed(rank.steps):
        if step.time_s <= begin_s or len(chosen) >= MOST_STEPS:
            break
        chosen.append(step)
    return chosen[::-1]


def runs(job: JobHistory | None) -> JobHistory | None:
    """The job, or None if it has ended."""
    return job if job is not None and job.ended_s is None else None


def tuning(rank: RankHistory) -> bool:
    """Whether boosts were being tried in its last step."""
    return bool(rank.steps and rank.steps[-1].flags & pulse.TUNING)


def slope(values: Sequence[float]) -> float:
    """Theil-Sen: the median of the slopes between all pairs, per element."""
    pairs = [
        (values[j] - values[i]) / (j - i)
        for i in range(len(values))
        for j in range(i + 1, len(values))
    ]
    return median(pairs) if pairs else 0.0


def rises(values: Sequence[float]) -> float:
    """Mann-Kendall: the probability of such a rise, or a larger one, by chance."""
    n = len(values)
    if n < 8:
        return 1.0
    score = sum(
        (values[j] > values[i]) - (values[j] < values[i]) for i in range(n) for j in range(i + 1, n)
    )
    ties: dict[float, int] = {}
    for value in values:
        ties[value] = ties.get(value, 0) + 1
    tied = sum(count * (count - 1) * (2 * count + 5) for count in ties.values())
    variance = (n * (n - 1) * (2 * n + 5) - tied) / 18
    if variance <= 0 or score <= 0:
        return 1.0
    return 1 - NormalDist().cdf((score - 1) / math.sqrt(variance))


def gib(value: float) -> str:
    """Bytes in readable form."""
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def seconds(value: float) -> str:
    """A time in readable form."""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
