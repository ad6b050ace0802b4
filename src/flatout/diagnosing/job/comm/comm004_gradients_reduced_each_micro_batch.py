"""Gradients are exchanged after each micro-batch instead of once a step.

## What it sees

The script accumulates gradients over several backward passes a step under DistributedDataParallel,
and as many bytes are all-reduced (or messages, if the bytes are unknown) as in several passes.

## Why it matters

Only the sum is needed. All but the last exchange of a step are wasted.

## Cure

All backward passes but the last inside `model.no_sync()`. The gain: the exposed communication of
the others.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.comm import communication
from flatout.nouns import amdahl, units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM004", severity=Severity.WARNING, since="0.2.0", hides=("COMM001",))
MORE = 1.5
"""How many times the gradients' bytes show that more than one pass is exchanged."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the model."""
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
