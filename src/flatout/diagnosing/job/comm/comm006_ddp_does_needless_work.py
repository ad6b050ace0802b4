"""DistributedDataParallel searches for unused parameters, or sends buffers, in each step.

## What it sees

- The model is wrapped with `find_unused_parameters=True`: a note where little is gained.
- The model is wrapped, and there are broadcasts in each step, exposed for 1% of it or more.

## Why it matters

With `find_unused_parameters=True` the whole autograd graph is walked through on the host after each
forward pass, and after each backward pass the ranks exchange which parameters were used. Most
models use all of them, always.

With `broadcast_buffers=True`, the default, the running statistics of batch normalisation and all
other buffers are sent from rank 0 to the others at the beginning of each forward pass. Nothing can
run beside that: every rank waits for rank 0. Normalisation in training uses the statistics of the
batch, so training is the same without it.

## Cure

Leave `find_unused_parameters` out; torch says so if a parameter gets no gradient. If the same ones
are unused in each step, `static_graph=True`. The gain: the walk, 5 us for each parameter tensor, as
far as the device waits for the host.

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
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM006", severity=Severity.WARNING, since="0.2.0")
WALK_MS = 0.005
"""Time for the few graph nodes of each parameter tensor."""
EACH_STEP = 0.9


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the search, one for all broadcasts."""
    yield from _search(profile)
    yield from _broadcasts(profile)


def _search(profile: Profile) -> Iterator[Diagnosis]:
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
            _lines(", find_unused_parameters=True", ""),
        ),
        severity=savings.severity(profile, saves),
        where=profile.seen.model_where if profile.seen is not None else None,
        saves_ms=saves if savings.worth(profile, saves) else None,
        reason=f"walking the graph: {tensors:,} x {1000 * WALK_MS:.0f} us, as far as the device "
        "waits for the host",
    )


def _broadcasts(profile: Profile) -> Iterator[Diagnosis]:
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
                _lines("", ", broadcast_buffers=False"),
            ),
            severity=savings.severity(profile, saves),
            where=profile.seen.model_where if profile.seen is not None else None,
            saves_ms=saves,
            reason=f"{collective.calls:.0f} broadcasts a step go",
        )


def _lines(before: str, after: str) -> tuple[str, ...]:
    """The wrapping with an option taken out, or put in."""
    wrapped = "DistributedDataParallel(model, ...{})"
    return savings.lines(
        "where the model is wrapped", wrapped.format(before), wrapped.format(after)
    )
