"""A job no longer takes steps, and nothing works on one.

## What it sees

No step for 60 s, for 3 times the longest gap between steps so far, and for 20 times the 99th
percentile of these gaps. In addition, its processes use less than 5% of a core, or its GPU reports
100% at less than 40% of its power, as it does when NCCL spins. Alternatively, no step for 10 times
the longest gap and at least 10 minutes, or at least an hour while its GPUs work at their usual
power, as in a long evaluation. A single rank hangs if it is silent for that long while another
takes 20 steps or more.

Gaps with an evaluation, a checkpoint or the begin of an epoch are learnt separately, as is the
number of steps between two of them. They count only when the next one may be due. So a long
evaluation at the end of each epoch does not delay the alert in the middle of one.

A program that waits for its user to type a line, in a debugger or `input()`, does not hang.

## Why it matters

A hanging job holds its devices until somebody notices, or until its time limit ends it. Most
hang in a collective that one rank has not entered, in a lock, or in a loader's worker.

## Cure

Read the stacks: the first rank in the file is furthest behind, and it waits in the innermost line
of your own code.

## References

- https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
- https://docs.python.org/3/library/faulthandler.html
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine_sample import GpuSample
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, JobHistory, RankHistory, Rule, View

RULE = Rule(code="HANG001", severity=Severity.ERROR, since="0.2.0")
LEAST_S = 60.0
LONG_S, LONG_AT_WORK_S = 600.0, 3600.0
STEPS_AHEAD = 20
IDLE = "its processes do nothing"
IDLE_CORES, UPPER_CORES = 0.05, 0.10
SPINS, STILL_SPINS = (0.95, 0.4), (0.9, 0.5)
"""A GPU spins from this utilisation on, below this share of its power limit."""
LONGEST_LOOK_S = 15.0
"""The most time between two samples of the machine that counts as watched."""


def check(view: View) -> Iterator[Breach]:
    """At most one breach for a job."""
    job = _windows.runs(view.job)
    ranks = [r for r in job.ranks if r.pid and not r.ended] if job is not None else []
    if job is None or not ranks or any(map(_windows.tuning, ranks)):
        return
    if any(rank.waits_for_input for rank in ranks):
        return
    least = min(ranks, key=lambda rank: rank.steps[-1].step if rank.steps else 0)
    if (left_behind := _left_behind(view, job, ranks, least)) is not None:
        yield left_behind
        return
    silent_s = _silence(view, max(_last(job, rank) for rank in ranks))
    gap = max(rank.usual_gap_s for rank in ranks)
    begun = any(rank.steps for rank in ranks)
    least_s = max(LEAST_S, 3 * gap, 20 * max(rank.p99_gap_s for rank in ranks))
    if silent_s < (least_s if begun else LONG_S):
        return
    doing = _doing(view, ranks, silent_s)
    if not begun:
        if doing is not None and doing[0] == IDLE:
            yield _breach(job, least, silent_s, f"no step yet, and {IDLE}", doing[1])
        return
    usual = f"gaps of up to {_windows.seconds(gap)} are usual here"
    if doing is not None:
        yield _breach(job, least, silent_s, f"{doing[0]}; {usual}", doing[1])
    elif silent_s >= max(LONG_AT_WORK_S if _works(view, ranks) else LONG_S, 10 * gap):
        yield _breach(job, least, silent_s, usual)


def _left_behind(
    view: View, job: JobHistory, ranks: list[RankHistory], least: RankHistory
) -> Breach | None:
    """A rank that takes no step while others continue."""
    silent_s = _silence(view, _last(job, least))
    gap = max(rank.usual_gap_s for rank in ranks)
    if not least.steps or silent_s < max(LEAST_S, 3 * gap, 20 * least.p99_gap_s):
        return None
    ahead = max(rank.steps[-1].step for rank in ranks if rank.steps) - least.steps[-1].step
    if ahead < STEPS_AHEAD:
        return None
    return _breach(job, least, silent_s, f"others are up to {ahead} steps ahead")


def _last(job: JobHistory, rank: RankHistory) -> float:
    return rank.steps[-1].time_s if rank.steps else job.began_s


def _silence(view: View, last_s: float) -> float:
    """Watched seconds since `last_s`.

    While a machine sleeps or a terminal is stopped (Ctrl-Z), no step is taken either.
    """
    if last_s > view.now_s and view.machine:  # the clock was set back; the samples started again
        last_s = view.machine[0].time_s
    times = [last_s, *(sample.time_s for sample in view.machine if sample.time_s > last_s)]
    return sum(min(LONGEST_LOOK_S, max(0.0, after - at)) for at, after in pairwise(times))


def _doing(view: View, ranks: list[RankHistory], silent_s: float) -> tuple[str, bool] | None:
    """(why no step is in progress, whether an alert begins), or None if something works on one."""
    cores = _cores(view, ranks, silent_s)
    if cores is not None and cores < UPPER_CORES:
        return IDLE, cores < IDLE_CORES
    gpus = _gpus(view, ranks)
    for thresholds in (SPINS, STILL_SPINS):
        if gpus and all(_spins(gpu, *thresholds) for gpu in gpus):
            return "its GPU is busy but draws little power", thresholds is SPINS
    return None


def _cores(view: View, ranks: list[RankHistory], silent_s: float) -> float | None:
    """Cores of the busiest rank in the later half of the silence; None if a rank's are unknown."""
    begin = view.now_s - min(silent_s / 2, 300.0)
    means = []
    for rank in ranks:
        used = [t.cpu_cores for t in rank.trees if t.time_s > begin and t.cpu_cores is not None]
        if len(used) < 5:
            return None
        means.append(sum(used) / len(used))
    return max(means)


def _gpus(view: View, ranks: list[RankHistory]) -> list[GpuSample]:
    """Samples of the job's GPUs in the last 30 s, or none if there are too few."""
    used = {index for rank in ranks for index in rank.gpus}
    window = [gpu for sample in view.last(30.0) for gpu in sample.gpus if gpu.index in used]
    return window if len(window) >= 10 else []


def _spins(gpu: GpuSample, busy: float, power: float) -> bool:
    share = _power(gpu)
    return (gpu.utilization or 0.0) >= busy and share is not None and share < power


def _works(view: View, ranks: list[RankHistory]) -> bool:
    """Whether GPUs compute: half busy or more, at a power that spinning never takes."""
    gpus = _gpus(view, ranks)
    busy = [gpu for gpu in gpus if (gpu.utilization or 0.0) >= 0.5 and (_power(gpu) or 0.0) >= 0.4]
    return len(busy) > len(gpus) / 2


def _power(gpu: GpuSample) -> float | None:
    """Power as a share of its limit."""
    if gpu.power_w is None or not gpu.power_limit_w:
        return None
    return gpu.power_w / gpu.power_limit_w


def _breach(
    job: JobHistory, least: RankHistory, silent_s: float, why: str, fires: bool = True
) -> Breach:
    step = f"after step {least.steps[-1].step}" if least.steps else "before its first step"
    where = f", rank {least.rank} is least far" if len(job.ranks) > 1 else ""
    gone = [f"{rank.rank}" for rank in job.ranks if rank.ended]
    where += f", rank {', '.join(gone)} has ended" if gone else ""
    commands = (f"cat {job.stacks}",) if job.stacks else (f"py-spy dump --pid {least.pid}",)
    return Breach(
        title=f"the job hangs {step}",
        evidence=f"no step for {_windows.seconds(silent_s)}{where}; {why}",
        cure=Cure(
            "Read the stacks: the innermost line of your own code is where it waits.", commands
        ),
        fires=fires,
    )
