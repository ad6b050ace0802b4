"""One rank is slower than the others, and all wait for it.

## What it sees

Among the ranks that have traces, one computes longer than the median rank by at least 5% of the
step; the others wait in their collectives.

## Why it matters

Each exchange of gradients ends when the last rank has joined. A rank with longer samples, a slower
loader, a hotter or shared GPU, or with extra duties (logging, saving) sets the pace of all.

## Cure

Find out what is different on that rank: `flatout doctor` on its machine, its loader's wait, samples
of unequal length (sort them into batches of similar length), work that only it does. The gain: the
difference.

## References

- https://docs.pytorch.org/docs/stable/notes/ddp.html
- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM002", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.05


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the slowest rank."""
    ranks = profile.ranks
    if len(ranks) < 2:
        return
    slowest = max(ranks, key=lambda rank: rank.compute_ms)
    middle = statistics.median_low(rank.compute_ms for rank in ranks)
    waits = max(rank.communication_ms for rank in ranks)
    waits += profile.anatomy.part(Kind.WAIT_RANKS)
    later = slowest.compute_ms - middle
    saves = savings.within(profile, min(later, waits))
    if later < LEAST_SHARE * profile.anatomy.step_ms or not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"rank {slowest.rank} computes {units.milliseconds(later)} longer than the others",
        evidence=f"rank {slowest.rank}: {units.milliseconds(slowest.compute_ms)} of computing, the "
        f"median of {len(ranks)} ranks {units.milliseconds(middle)}; up to "
        f"{units.milliseconds(waits)} of waiting in collectives",
        cure=Cure(
            f"Look at what is different on rank {slowest.rank}: its GPU, its data, its extra work.",
            (f"# on the machine of rank {slowest.rank}", "flatout doctor"),
        ),
        severity=savings.severity(profile, saves),
        saves_ms=saves,
        reason=f"the others wait for it: {units.milliseconds(slowest.compute_ms)} less "
        f"{units.milliseconds(middle)}",
    )
