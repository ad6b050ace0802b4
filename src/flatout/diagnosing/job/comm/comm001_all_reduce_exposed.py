"""Devices exchange gradients while nothing computes.

## What it sees

Collective communication of gradients (all-reduce, reduce-scatter, all-gather) runs 3% of the step
or more while no kernel computes.

## Why it matters

DistributedDataParallel sends gradients in buckets while the backward pass computes the next ones.
Sending that does not overlap with computing is lost time: always for the last bucket, and for all
of them if buckets are large, the connection is slow or the step is short.

## Cure

Several buckets (`bucket_cap_mb`), `gradient_as_bucket_view=True`, `static_graph=True`; fewer bytes
(`bf16_compress_hook`); fewer exchanges (gradient accumulation with `no_sync`). The gain: the
exposed communication that still fits beside the backward pass, except the last message; and half of
the rest, by sending bfloat16.

## References

- https://docs.pytorch.org/docs/stable/notes/ddp.html
- https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
- https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.comm import communication
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM001", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.03
BACKWARD = 0.5
"""Share of computing that can overlap sending gradients; two thirds of it are backward."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all collectives of gradients."""
    collectives = communication.of_gradients(profile)
    exposed = sum(collective.exposed_ms for collective in collectives)
    calls = sum(collective.calls for collective in collectives)
    if not collectives or calls < 1 or exposed < LEAST_SHARE * profile.anatomy.step_ms:
        return
    total = sum(collective.ms for collective in collectives)
    room = max(0.0, BACKWARD * communication.computing_ms(profile) - (total - exposed))
    hidden = max(0.0, min(exposed, room) - total / calls)
    smaller = (exposed - hidden) / 2 if communication.halved(profile) else 0.0
    saves = savings.within(profile, hidden + smaller)
    if not savings.worth(profile, saves):
        return
    where = profile.seen.backward_where if profile.seen is not None else None
    yield Diagnosis(
        title=f"{units.milliseconds(exposed)} of exchanging gradients while nothing computes",
        evidence=f"{units.milliseconds(exposed)} exposed, {units.milliseconds(total - exposed)} "
        f"hidden; {communication.evidence(collectives)}",
        cure=Cure(
            "Overlap more buckets with the backward pass, and send them in bfloat16.",
            savings.lines(
                "where the model is wrapped",
                "DistributedDataParallel(model, ...)",
                "DistributedDataParallel(model, ..., bucket_cap_mb=25, static_graph=True,",
                "    gradient_as_bucket_view=True)",
                "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=where,
        saves_ms=saves,
        reason=f"{units.milliseconds(hidden)} fit beside the backward pass"
        + (f", half of the remaining bytes save {units.milliseconds(smaller)}" if smaller else ""),
    )
