"""A job spends a large part of each step waiting for its loader.

## What it sees

In the last 60 s and at least 50 steps, at least 15% of the time is spent waiting for the loader's
batch. This counts from the second epoch or after 10 minutes: the first epoch fills caches.

## Why it matters

Meanwhile the device is idle. The cure needs no other hardware: more workers, or less work for each
sample.

## Cure

The named boost takes the work out of the loop without an edit. `flatout profile` names the line
that does the work.

## References

- https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from flatout.nouns.finding import Cure, Severity
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, JobHistory, RankHistory, Rule, View

RULE = Rule(code="WAIT001", severity=Severity.WARNING, since="0.2.0", every_s=5.0)
WINDOW_S = 60.0
LEAST_STEPS = 50
SHARE, LOWER_SHARE = 0.15, 0.10
LATER_S = 600.0


def check(view: View) -> Iterator[Breach]:
    """At most one breach for a job: for its rank that waits most."""
    job = _windows.runs(view.job)
    if job is None:
        return
    waits = [(wait, rank) for rank in job.ranks if (wait := _wait(view, job, rank)) is not None]
    if not waits:
        return
    (share, wait_s, step_s), rank = max(waits, key=lambda item: item[0][0])
    if share < LOWER_SHARE:
        return
    where = f" (rank {rank.rank})" if len(job.ranks) > 1 else ""
    if job.wait_boost is not None:
        text = f"The boost {job.wait_boost} cures it without an edit."
        cure = Cure(text, (f"flatout run --live {job.program}",))
    else:
        text = "Give the DataLoader more workers, or do less for each sample."
        cure = Cure(text, (f"flatout profile {job.program}",))
    yield Breach(
        title=f"the job waits for its data {share:.0%} of the time",
        evidence=f"{_windows.seconds(wait_s)} of {_windows.seconds(step_s)} a step{where}, "
        "median of the last minute",
        cure=cure,
        boost=job.wait_boost,
        fires=share >= SHARE,
    )


def _wait(view: View, job: JobHistory, rank: RankHistory) -> tuple[float, float, float] | None:
    """(share, wait, step) of its last minute, or None if it is too early or they are not known."""
    if rank.epochs < 2 and view.now_s - job.began_s < LATER_S:
        return None
    steps = _windows.usual(_windows.since(rank, view.now_s - WINDOW_S))
    if len(steps) < LEAST_STEPS or _windows.tuning(rank):
        return None
    if steps[-1].time_s - rank.steps[0].time_s < WINDOW_S:  # it has just begun
        return None
    known = [(step.wait_s, step.duration_s) for step in steps if step.wait_s is not None]
    if len(known) < len(steps):
        return None
    share = median(min(1.0, wait_s / step_s) for wait_s, step_s in known)
    return share, median(wait_s for wait_s, _ in known), median(step_s for _, step_s in known)
