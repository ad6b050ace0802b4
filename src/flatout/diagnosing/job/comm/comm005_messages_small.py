"""Devices exchange many small messages.

## What it sees

Ten collectives a step or more of less than 1 MiB each on average (bytes not known: thirty of less
than 0.1 ms), exposed for 2% of the step or more: hand-written averaging of each parameter's
gradient, of metrics, or of batch statistics.

## Why it matters

Below about a megabyte a collective takes its latency, some ten to fifty microseconds over NVLink
and more between machines, whatever its size.

## Cure

Combine small tensors (`torch.cat`, buckets of DistributedDataParallel); exchange metrics every N
steps. The gain: the exposed time of all but one message in each bucket of 25 MiB.

## References

- https://docs.pytorch.org/docs/stable/notes/ddp.html
- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.comm import communication
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Collective, Profile

CHECK = Check(code="COMM005", severity=Severity.WARNING, since="0.2.0")
SMALL = 2**20
SHORT_MS = 0.1
"""Mean length below which a message of unknown bytes must be small."""
MANY = 10
LEAST_SHARE = 0.02


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each kind of collective."""
    for collective in profile.collectives:
        if collective.calls < MANY or not _small(collective):
            continue
        if collective.exposed_ms >= LEAST_SHARE * profile.anatomy.step_ms:
            yield from _kind(profile, collective)


def _small(collective: Collective) -> bool:
    if collective.bytes is None:
        return collective.ms / collective.calls < SHORT_MS and collective.calls >= 3 * MANY
    return collective.bytes / collective.calls < SMALL


def _kind(profile: Profile, collective: Collective) -> Iterator[Diagnosis]:
    messages = max(1.0, (collective.bytes or 0.0) / communication.BUCKET)
    saves = savings.within(profile, collective.exposed_ms * (1 - messages / collective.calls))
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"{collective.calls:,.0f} small messages ({collective.name}) in each step",
        evidence=f"{communication.evidence([collective])}; "
        f"{1000 * collective.ms / collective.calls:,.0f} us each, "
        f"{units.milliseconds(collective.exposed_ms)} exposed",
        cure=Cure(
            "Combine the tensors and send them as one.",
            savings.lines(
                None,
                "for g in gradients: dist.all_reduce(g)",
                "flat = torch.cat([g.flatten() for g in gradients]); dist.all_reduce(flat)",
            ),
        ),
        severity=savings.severity(profile, saves),
        saves_ms=saves,
        reason=f"{messages:,.0f} messages instead of {collective.calls:,.0f} in "
        f"{units.milliseconds(collective.exposed_ms)}",
    )
