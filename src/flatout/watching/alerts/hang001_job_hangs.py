"""A job takes no step any more, and nothing works on one.

## What it sees

No step for 60 s, 3 times the longest and 20 times the 99th percentile of the gaps between steps so
far, whichever is most; gaps with an evaluation or a checkpoint in them are learnt apart. And its
processes use less than 5% of a core, or its GPU reports 100% at less than 40% of its power, as it
does when NCCL spins. Or there is no step for 10 times the longest gap and at least 10 minutes.
One rank alone hangs where it is silent for so long while the others take 20 steps or more.

A program that waits for a line from its user, in a debugger or `input()`, does not hang.

## Why it matters

A job that hangs holds its devices until somebody notices, or until its time limit ends it. Most
hang in a collective that one rank has not entered, in a lock, or in a loader's worker.

## Evidence

How long no step has ended, the longest gap before, what its processes and GPUs do, and the rank
that is least far. `flatout run` writes the stacks of all ranks into its folder, `stacks.txt`.

## Cure

Read the stacks: the first rank in the file is the one that is least far, and its innermost line of
your own code is where it waits.

## References

- https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
- https://docs.python.org/3/library/faulthandler.html
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from flatout.nouns.finding import Cure, Severity
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, JobHistory, RankHistory, Rule, View

RULE = Rule(code="HANG001", severity=Severity.ERROR, since="0.2.0")
LEAST_S = 60.0
LONG_S = 600.0
STEPS_AHEAD = 20
IDLE_CORES = 0.05
LONGEST_LOOK_S = 15.0
"""Between two samples of the machine; what is longer was not watched."""


def check(view: View) -> Iterator[Breach]:
    """At most one breach for a job."""
    job = _windows.runs(view.job)
    ranks = [rank for rank in job.ranks if rank.pid] if job is not None else []
    if job is None or not ranks or any(map(_windows.tuning, ranks)):
        return
    if any(rank.waits_for_input for rank in ranks):
        return
    least = min(ranks, key=lambda rank: rank.steps[-1].step if rank.steps else 0)
    if (left_behind := _left_behind(view, job, least)) is not None:
        yield left_behind
        return
    silent_s = _silence(view, max(_last(job, rank) for rank in ranks))
    if not any(rank.steps for rank in ranks):
        if silent_s >= LONG_S and _idle(view, ranks, silent_s):
            yield _breach(job, least, silent_s, "no step yet, and its processes do nothing")
        return
    gap = max(max(rank.longest_gap_s, rank.longest_pause_s) for rank in ranks)
    p99 = max(rank.p99_gap_s for rank in ranks)
    if silent_s < max(LEAST_S, 3 * gap, 20 * p99):
        return
    longest = f"the longest gap before was {_windows.seconds(gap)}"
    if _idle(view, ranks, silent_s):
        yield _breach(job, least, silent_s, f"its processes do nothing; {longest}")
    elif _spins(view, ranks):
        yield _breach(job, least, silent_s, f"its GPU is busy at little power; {longest}")
    elif silent_s >= max(LONG_S, 10 * gap):
        yield _breach(job, least, silent_s, longest)


def _left_behind(view: View, job: JobHistory, least: RankHistory) -> Breach | None:
    """A rank that takes no step while the others go on."""
    silent_s = _silence(view, _last(job, least))
    gap = max(max(rank.longest_gap_s, rank.longest_pause_s) for rank in job.ranks)
    if not least.steps or silent_s < max(LEAST_S, 3 * gap, 20 * least.p99_gap_s):
        return None
    others = [rank for rank in job.ranks if rank is not least and rank.steps]
    ahead = min((rank.steps[-1].step for rank in others), default=0) - least.steps[-1].step
    if ahead < STEPS_AHEAD:
        return None
    return _breach(job, least, silent_s, f"the others are {ahead} steps ahead")


def _last(job: JobHistory, rank: RankHistory) -> float:
    return rank.steps[-1].time_s if rank.steps else job.began_s


def _silence(view: View, last_s: float) -> float:
    """Seconds since then in which somebody watched.

    A machine that slept and a terminal that was stopped (Ctrl-Z) have taken no step either.
    """
    times = [last_s, *(sample.time_s for sample in view.machine if sample.time_s > last_s)]
    return sum(min(LONGEST_LOOK_S, max(0.0, after - at)) for at, after in pairwise(times))


def _idle(view: View, ranks: list[RankHistory], silent_s: float) -> bool:
    """Whether no rank has used a core since, as far back as half of the silence tells."""
    begin = view.now_s - min(silent_s / 2, 300.0)
    for rank in ranks:
        used = [t.cpu_cores for t in rank.trees if t.time_s > begin and t.cpu_cores is not None]
        if len(used) < 5 or sum(used) / len(used) >= IDLE_CORES:
            return False
    return True


def _spins(view: View, ranks: list[RankHistory]) -> bool:
    used = {index for rank in ranks for index in rank.gpus}
    window = [gpu for sample in view.last(30.0) for gpu in sample.gpus if gpu.index in used]
    return len(window) >= 10 and all(
        gpu.utilization is not None
        and gpu.utilization >= 0.95
        and gpu.power_w is not None
        and gpu.power_limit_w
        and gpu.power_w < 0.4 * gpu.power_limit_w
        for gpu in window
    )


def _breach(job: JobHistory, least: RankHistory, silent_s: float, why: str) -> Breach:
    step = f"after step {least.steps[-1].step}" if least.steps else "before its first step"
    where = f", rank {least.rank} is least far" if len(job.ranks) > 1 else ""
    commands = (f"cat {job.stacks}",) if job.stacks else (f"py-spy dump --pid {least.pid}",)
    return Breach(
        title=f"the job hangs {step}",
        evidence=f"no step for {_windows.seconds(silent_s)}{where}; {why}",
        cure=Cure(
            "Read the stacks: the innermost line of your own code is where it waits.", commands
        ),
    )
