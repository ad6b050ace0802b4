"""Gradients are exchanged in so few messages that almost nothing overlaps with computing.

## What it sees

All gradients of a step go in three all-reduces or fewer, at most a quarter of their time is
hidden beside computing, and 3% of the step or more is exposed.

## Why it matters

A bucket of DistributedDataParallel is sent when its last gradient is there. Where one bucket holds
most of the gradients, that is when the backward pass is over. With the default of 25 MiB
(`bucket_cap_mb`) it is so for every model of up to some ten million parameters.

## Evidence

Messages and bytes a step, exposed and hidden milliseconds; if `flatout bench` was run, the latency
of a message.

## Cure

A smaller `bucket_cap_mb`: large enough that a message's latency is a tenth of its time, an eighth
of all gradients if that is unknown. The gain: what then fits beside the backward pass, all but the
last message, less the latency of the new ones.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.comm import communication
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Collective, Profile

CHECK = Check(
    code="COMM009", severity=Severity.WARNING, since="0.2.0", hides=("COMM001", "COMM007")
)
FEW = 3
HIDDEN = 0.25
LEAST_SHARE = 0.03
BACKWARD = 0.5
"""Share of computing that can overlap sending gradients; two thirds of it are backward."""
PARTS = 8
"""Buckets to aim for if the latency is unknown."""
LEAST_MIB = 1
LATENCY_SHARE = 0.1


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the all-reduces of gradients."""
    if not communication.is_ddp(profile):
        return
    for collective in communication.reduced(profile):
        size = collective.bytes or communication.gradient_bytes(profile)
        hidden = collective.ms - collective.exposed_ms
        is_late = collective.ms > 0 and hidden <= HIDDEN * collective.ms
        if size is None or not 0 < collective.calls <= FEW or not is_late:
            continue
        if collective.exposed_ms >= LEAST_SHARE * profile.anatomy.step_ms:
            yield from _large(profile, collective, size)


def _large(profile: Profile, collective: Collective, size: float) -> Iterator[Diagnosis]:
    ranks = collective.ranks or 2
    latency_ms = communication.latency_ms(profile, ranks)
    bucket = _bucket_mib(collective, size, latency_ms)
    parts = size / 2**20 / bucket
    if parts < collective.calls + 1:
        return
    hidden = collective.ms - collective.exposed_ms
    room = max(0.0, BACKWARD * communication.computing_ms(profile) - hidden)
    added = (parts - collective.calls) * (latency_ms or 0.0)
    saves = savings.within(profile, min(collective.exposed_ms * (1 - 1 / parts), room) - added)
    if not savings.worth(profile, saves):
        return
    known = f"; {units.milliseconds(latency_ms)} for a small message" if latency_ms else ""
    yield Diagnosis(
        title=f"{units.size(size)} of gradients are exchanged in {collective.calls:.0f} "
        f"message{'s' if collective.calls >= 1.5 else ''}, after the backward pass",
        evidence=f"{communication.evidence([collective])}; "
        f"{units.milliseconds(collective.exposed_ms)} exposed, {units.milliseconds(hidden)} "
        f"hidden{known}",
        cure=Cure(
            f"Send them in buckets of {bucket} MiB, while the backward pass computes the next.",
            savings.lines(
                "where the model is wrapped",
                "DistributedDataParallel(model, ...)",
                f"DistributedDataParallel(model, ..., bucket_cap_mb={bucket})",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=profile.seen.model_where if profile.seen is not None else None,
        saves_ms=saves,
        reason=f"of {units.milliseconds(collective.exposed_ms)} all but the last of {parts:.0f} "
        "buckets, as far as the backward pass is long enough",
    )


def _bucket_mib(collective: Collective, size: float, latency_ms: float | None) -> int:
    """MiB of a bucket whose time is ten latencies, at the messages' present speed."""
    per_part = size / PARTS
    if latency_ms is not None and collective.ms > 0:
        per_part = latency_ms / LATENCY_SHARE * size / collective.ms
    return max(LEAST_MIB, round(per_part / 2**20))
