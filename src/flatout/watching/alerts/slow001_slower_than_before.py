"""A job's steps take longer than at its begin.

## What it sees

The median of the last 5 minutes is at least 1.2 times that of steps 50 to 250, with equal shapes,
twice, 60 s apart.

## Why it matters

A run planned for a day takes longer by that factor, and often nobody notices.

## Cure

This depends on the named cause. If none is named, `flatout profile` shows where the time goes.

## References

- https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
- https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from flatout.nouns.finding import Cure, Severity
from flatout.nouns.job_sample import PulseStep
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, RankHistory, Rule, View

RULE = Rule(code="SLOW001", severity=Severity.WARNING, since="0.2.0", every_s=10.0)
WINDOW_S = 300.0
LEAST_STEPS = 50
RATIO, LOWER_RATIO = 1.2, 1.1
AGAIN_S = 60.0
SWAP_BYTES_PER_S = 2**20


def check(view: View) -> Iterator[Breach]:
    """At most one breach for a job: for its rank that has slowed most."""
    job = _windows.runs(view.job)
    found = [(seen, rank) for rank in (job.ranks if job else ()) if (seen := _ratio(view, rank))]
    if job is None or not found:
        return
    (ratio, now, steps), rank = max(found, key=lambda item: item[0][0])
    if ratio < LOWER_RATIO:
        return
    early = rank.early_step_s or 0.0
    cause, cure = _cause(view, rank, now - early, steps, job.program)
    yield Breach(
        title=f"a step takes {ratio:.2f} times as long as at the start",
        evidence=f"{_windows.seconds(now)} in the last 5 minutes, {_windows.seconds(early)} in the "
        f"steps 50 to 250; {cause}",
        cure=cure,
        fires=ratio >= RATIO,
        hold_s=AGAIN_S,
    )


def _ratio(view: View, rank: RankHistory) -> tuple[float, float, list[PulseStep]] | None:
    """(ratio, median now, the steps), or None if not known."""
    if not rank.early_step_s or _windows.tuning(rank):
        return None
    steps = [
        step
        for step in _windows.usual(_windows.since(rank, view.now_s - WINDOW_S))
        if step.shapes == rank.early_shapes and step.step > 250
    ]
    if len(steps) < LEAST_STEPS or steps[-1].time_s - steps[0].time_s < WINDOW_S / 2:
        return None
    now = median(step.duration_s for step in steps)
    return now / rank.early_step_s, now, steps


def _cause(
    view: View, rank: RankHistory, more_s: float, steps: Sequence[PulseStep], program: str
) -> tuple[str, Cure]:
    wait = median(step.wait_s or 0.0 for step in steps) - (rank.early_wait_s or 0.0)
    if wait >= 0.5 * more_s:
        cure = Cure("See what slows the loader: storage, cores, memory.", ("flatout monitor",))
        return f"{_windows.seconds(wait)} of it waits for data", cure
    recent = view.last(WINDOW_S)
    clocks = [g.clock_mhz for s in recent for g in s.gpus if g.index in rank.gpus and g.clock_mhz]
    if clocks and rank.early_clock_mhz and median(clocks) < 0.93 * rank.early_clock_mhz:
        text = f"the GPU clock fell from {rank.early_clock_mhz:.0f} to {median(clocks):.0f} MHz"
        return text, Cure("See why the GPU is slowed down.", ("flatout explain HEAT001",))
    swaps = [s.swap_in_bytes_per_s for s in recent if s.swap_in_bytes_per_s is not None]
    if swaps and median(swaps) >= SWAP_BYTES_PER_S:
        return "the machine swaps", Cure("Free memory, or use fewer loader workers.")
    steals = [s.cpu_steal for s in recent if s.cpu_steal is not None]
    if steals and median(steals) >= 0.05:
        text = f"the hypervisor gives {median(steals):.0%} of the cores' time to others"
        return text, Cure("Move the job to a machine of its own.")
    busy = [s.cpu_cores / s.cores for s in recent if s.cpu_cores is not None and s.cores]
    own = [t.cpu_cores for t in rank.trees if t.cpu_cores is not None][-60:]
    if busy and own and view.latest is not None and view.latest.cores:
        others = median(busy) - median(own) / view.latest.cores
        if others >= 0.2:
            return f"other programs use {others:.0%} of the cores", Cure("End or move the others.")
    return "no cause was seen from outside", Cure(
        "See where the time goes.", (f"flatout profile {program}",)
    )
