"""DistributedDataParallel sends all buffers from rank 0 before each forward pass.

## What it sees

The model is wrapped, and there are broadcasts in each step, exposed for 1% of it or more.

## Why it matters

With `broadcast_buffers=True`, the default, the running statistics of batch normalisation and all
other buffers are sent from rank 0 to the others at the beginning of each forward pass. Nothing can
run beside that: every rank waits for rank 0. Normalisation in training uses the statistics of the
batch, so training is the same without it.

## Cure

`broadcast_buffers=False`. Rank 0 saves the same as before, since it sent its own statistics. Before
an evaluation on all ranks, send them once. The gain: the exposed broadcasts.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.comm import communication
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM010", severity=Severity.WARNING, since="0.2.0")
EACH_STEP = 0.9


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all broadcasts."""
    if not communication.is_ddp(profile):
        return
    for collective in profile.collectives:
        if collective.name != "broadcast" or collective.calls < EACH_STEP:
            continue
        saves = savings.within(profile, collective.exposed_ms)
        if not savings.worth(profile, saves):
            continue
        yield Diagnosis(
            title=f"buffers are sent from rank 0 in each step: {units.milliseconds(saves)}",
            evidence=f"{communication.evidence([collective])}; "
            f"{units.milliseconds(collective.exposed_ms)} exposed",
            cure=Cure(
                "Leave each rank its own buffers; send them once before an evaluation.",
                savings.lines(
                    "where the model is wrapped",
                    "DistributedDataParallel(model, ...)",
                    "DistributedDataParallel(model, ..., broadcast_buffers=False)",
                ),
            ),
            severity=savings.severity(profile, saves),
            where=profile.seen.model_where if profile.seen is not None else None,
            saves_ms=saves,
            reason=f"{collective.calls:.0f} broadcasts a step go",
        )
