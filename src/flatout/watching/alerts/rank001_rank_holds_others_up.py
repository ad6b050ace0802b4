"""One rank of a job is slower than the others, and all of them wait for it.

## What it sees

In two consecutive windows of 100 steps, the same rank reaches its backward pass last in at least
80% of the steps, later than the median of the others by at least 8% of the step and 5 ms, and by
more than 5 times their spread. Up to there a rank works alone: it waits for its data and computes
the forward pass. In the backward pass ranks wait for each other, so whole steps take equally long
on all. With several backward passes in a step, only the waiting for data is compared. A GPU runs
asynchronously, so a slow one shows here only if the program waits for it in each step; HEAT001
reports a GPU that is slowed down.

## Why it matters

In data-parallel training each step lasts as long as the slowest rank's.

## Cure

Compare its machine with the others: its disk, other programs on its cores, its share of the data.

## References

- https://docs.pytorch.org/docs/stable/notes/ddp.html
- https://arxiv.org/abs/2505.05713
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
LOWER = 0.7
"""Share of the least excess below which an alert is over."""


@dataclass(frozen=True)
class _Window:
    """100 steps taken by all ranks, and the rank that is slowest in most of them."""

    rank: RankHistory
    share: float
    own_s: float
    others_s: float
    waits: bool
    """Whether most of its excess is waiting for data."""
    fires: bool


def check(view: View) -> Iterator[Breach]:
    """At most one breach for a job of several ranks."""
    job = _windows.runs(view.job)
    if job is None or any(_windows.tuning(rank) or rank.ended for rank in job.ranks):
        return
    last = _window(job.ranks, 0)
    before = _window(job.ranks, WINDOW)
    if last is None or before is None or last.rank is not before.rank:
        return
    yield Breach(
        title=f"rank {last.rank.rank} holds the others up",
        evidence=f"it is the last in {last.share:.0%} of {WINDOW} steps: "
        f"{_windows.seconds(last.own_s)} of its own work, the others "
        f"{_windows.seconds(last.others_s)}; "
        f"{'most of the excess waits for data' if last.waits else 'it computes longer'}",
        cure=Cure(
            "Compare its disk and its share of the data with those of the others."
            if last.waits
            else "Compare its clock, its cores and the length of its samples with the others'."
        ),
        subject=f"rank {last.rank.rank}",
        fires=last.fires and before.fires,
    )


def _window(ranks: Sequence[RankHistory], skip: int) -> _Window | None:
    """One window of equal steps, or None if there are too few or no rank is slow."""
    if len(ranks) < 2:
        return None
    tables = [
        {step.step: step for step in islice(reversed(rank.steps), skip, skip + 2 * WINDOW)}
        for rank in ranks
    ]
    common = sorted(set.intersection(*map(set, tables)))[-WINDOW:]
    if len(common) < WINDOW:
        return None
    steps = [[table[step] for step in common] for table in tables]
    waits = [[step.wait_s or 0.0 for step in row] for row in steps]
    known = all(step.own_s is not None for row in steps for step in row)
    times = [[step.own_s or 0.0 for step in row] for row in steps] if known else waits
    worst = [max(range(len(ranks)), key=lambda i: times[i][n]) for n in range(WINDOW)]
    leader = max(set(worst), key=worst.count)
    share = worst.count(leader) / WINDOW
    own, others, spread = _compared(times, leader)
    excess = own - others
    duration = median(step.duration_s for step in steps[leader])
    least = max(EXCESS_S, EXCESS * duration, SPREADS * spread)
    if share < LOWER_SHARE or not excess >= LOWER * least:
        return None
    own_wait, others_wait, _ = _compared(waits, leader)
    waited = own_wait - others_wait >= excess / 2
    fires = share >= SLOWEST_SHARE and excess >= least
    return _Window(ranks[leader], share, own, others, waited, fires)


def _compared(times: Sequence[Sequence[float]], leader: int) -> tuple[float, float, float]:
    """(the leader's median, the median of all others, their median absolute deviation)."""
    rest = [value for i, row in enumerate(times) if i != leader for value in row]
    others = median(rest)
    return median(times[leader]), others, median(abs(value - others) for value in rest)
