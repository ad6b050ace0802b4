"""One rank waits longer for its data than the others, and all of them wait for it.

## What it sees

The same rank waits the longest for its loader in at least 80% of the last 100 steps, by at least 8%
of the step and 5 ms more than the median of the others and by more than 5 times their spread, in
two windows of 100 steps one after the other. The steps themselves take the same time on all ranks,
since each waits for the others, so that a device that computes slowly is not told here: a GPU that
is slowed down is HEAT001.

## Why it matters

In data-parallel training each step lasts as long as the slowest rank's.

## Evidence

The rank, its wait and that of the others, and how often it was the slowest.

## Cure

Compare its machine with the others: its disk, a neighbour on its cores, its share of the data.

## References

- https://docs.pytorch.org/docs/stable/notes/ddp.html
- https://arxiv.org/abs/2505.05713
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median

from flatout.nouns.finding import Cure, Severity
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, RankHistory, Rule, View

RULE = Rule(code="RANK001", severity=Severity.WARNING, since="0.2.0")
WINDOW = 100
SLOWEST_SHARE, LOWER_SHARE = 0.8, 0.65
EXCESS, EXCESS_S = 0.08, 0.005
SPREADS = 5.0


def check(view: View) -> Iterator[Breach]:
    """At most one breach for a job of several ranks."""
    job = _windows.runs(view.job)
    if job is None or len(job.ranks) < 2 or any(map(_windows.tuning, job.ranks)):
        return
    last = _window(job.ranks, 0)
    before = _window(job.ranks, WINDOW)
    if last is None or before is None or last[0].rank != before[0].rank:
        return
    rank, share, own, others = last
    fires = min(share, before[1]) >= SLOWEST_SHARE
    if min(share, before[1]) < LOWER_SHARE:
        return
    yield Breach(
        title=f"rank {rank.rank} holds the others up",
        evidence=f"it waits the longest in {share:.0%} of {WINDOW} steps: {_windows.seconds(own)} "
        f"for its data, the others {_windows.seconds(others)}",
        cure=Cure(
            "Compare its disk, its cores and its share of the data with those of the others."
        ),
        subject=f"rank {rank.rank}",
        fires=fires,
    )


def _window(
    ranks: Sequence[RankHistory], skip: int
) -> tuple[RankHistory, float, float, float] | None:
    """(slowest rank, share of steps, its own time, the others') of one window of equal steps."""
    tables = [
        {step.step: step.wait_s for step in islice(reversed(rank.steps), skip, skip + 2 * WINDOW)}
        for rank in ranks
    ]
    common = sorted(set.intersection(*map(set, tables)))[-WINDOW:]
    if len(common) < WINDOW:
        return None
    waits = [[table[step] for step in common] for table in tables]
    worst = [max(range(len(ranks)), key=lambda i: waits[i][n]) for n in range(WINDOW)]
    leader = max(set(worst), key=worst.count)
    own = median(waits[leader])
    rest = [value for i, row in enumerate(waits) if i != leader for value in row]
    others = median(rest)
    spread = median(abs(value - others) for value in rest)
    durations = [step.duration_s for step in islice(reversed(ranks[leader].steps), WINDOW)]
    excess = own - others
    if excess < max(EXCESS_S, EXCESS * median(durations)) or excess <= SPREADS * spread:
        return None
    return ranks[leader], worst.count(leader) / WINDOW, own, others
