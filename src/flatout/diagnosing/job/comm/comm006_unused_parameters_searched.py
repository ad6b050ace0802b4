"""DistributedDataParallel searches for unused parameters in each step.

## What it sees

The model is wrapped with `find_unused_parameters=True`.

## Why it matters

After each forward pass the whole autograd graph is walked through on the host, and after each
backward pass the ranks exchange which parameters were used. Most models use all of them, always.

## Cure

Leave the option out; torch says so if a parameter gets no gradient. If the same ones are unused in
each step, `static_graph=True`. The gain: the walk, 5 us for each parameter tensor, as far as the
device waits for the host; a note where that is little.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM006", severity=Severity.NOTE, since="0.2.0")
WALK_MS = 0.005
"""Time for the few graph nodes of each parameter tensor."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the model."""
    job = profile.job
    if job is None or not any(model.searches_unused for model in job.models):
        return
    tensors = sum(optimizer.tensors for optimizer in job.optimizers)
    waits = profile.anatomy.part(Kind.WAIT_HOST)
    saves = savings.within(profile, min(waits, WALK_MS * tensors))
    yield Diagnosis(
        title="unused parameters are searched for in each step",
        evidence=f"find_unused_parameters=True; {tensors:,} parameter tensors, the device waits "
        f"{units.milliseconds(waits)} a step for launches",
        cure=Cure(
            "Leave find_unused_parameters out; static_graph=True where parameters stay unused.",
            savings.lines(
                "where the model is wrapped",
                "DistributedDataParallel(model, ..., find_unused_parameters=True)",
                "DistributedDataParallel(model, ...)",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=profile.seen.model_where if profile.seen is not None else None,
        saves_ms=saves if savings.worth(profile, saves) else None,
        reason=f"walking the graph: {tensors:,} x {1000 * WALK_MS:.0f} us, as far as the device "
        "waits for the host",
    )
