"""Devices exchange gradients while nothing computes, or after each micro-batch.

## What it sees

- The script accumulates gradients over several backward passes a step under
  DistributedDataParallel, and as many bytes are all-reduced (or messages, if the bytes are unknown)
  as in several passes.
- Otherwise collective communication of gradients (all-reduce, reduce-scatter, all-gather) that runs
  3% of the step or more while no kernel computes.

## Why it matters

DistributedDataParallel sends gradients in buckets while the backward pass computes the next ones.
Sending that does not overlap with computing is lost time: always for the last bucket, and for all
of them if buckets are large, the connection is slow or the step is short. Of several passes only
the sum is needed: all but the last exchange of a step are wasted.

## Cure

Accumulating: all backward passes but the last inside `model.no_sync()`. The gain: the exposed
communication of the others.

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
from flatout.nouns import amdahl, units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM001", severity=Severity.WARNING, since="0.2.0")
MORE = 1.5
"""How many times the gradients' bytes show that more than one pass is exchanged."""
LEAST_SHARE = 0.03
BACKWARD = 0.5
"""Share of computing that can overlap sending gradients; two thirds of it are backward."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """At most one finding for all collectives of gradients."""
    each_pass = list(_each_pass(profile))
    yield from each_pass or _exposed(profile)


def _each_pass(profile: Profile) -> Iterator[Diagnosis]:
    micro = profile.job.micro_steps if profile.job is not None else 1.0
    reductions, once = communication.reduced(profile), communication.gradient_bytes(profile)
    if micro < 2 or once is None or not reductions:
        return
    sizes = [collective.bytes for collective in reductions if collective.bytes is not None]
    calls, buckets = (
        sum(collective.calls for collective in reductions),
        2 + once / communication.BUCKET,
    )
    if sum(sizes) < MORE * once if sizes else calls < MORE * buckets:
        return
    exposed = sum(collective.exposed_ms for collective in reductions)
    saves = savings.within(profile, amdahl.saved(exposed, micro))
    if not savings.worth(profile, saves):
        return
    where = profile.seen.backward_where if profile.seen is not None else None
    yield Diagnosis(
        title=f"gradients are exchanged in each of {micro:g} backward passes of a step",
        evidence=f"{communication.evidence(reductions)}; gradients of {units.size(once)}; "
        f"{units.milliseconds(exposed)} of it exposed",
        cure=Cure(
            "Exchange once: all backward passes but the last inside model.no_sync().",
            savings.lines(
                where,
                "loss.backward()",
                "last = (index + 1) % accumulate == 0",
                "with contextlib.nullcontext() if last else model.no_sync():  # forward inside too",
                "    loss.backward()",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=where,
        saves_ms=saves,
        reason=f"of {units.milliseconds(exposed)} exposed one pass in {micro:g} stays",
    )


def _exposed(profile: Profile) -> Iterator[Diagnosis]:
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
