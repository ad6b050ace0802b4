"""The device copies the next batch and does not compute meanwhile.

## What it sees

Copies from pinned memory with `non_blocking=True`: the host does not wait for them, but they still
run while nothing computes.

## Why it matters

The copy is in the same stream as the kernels: the device runs it when its turn comes, and the
kernels after it wait for the bytes. On its own stream it overlaps with the kernels of the previous
step.

## Cure

Copy the next batch on a side stream while this one computes; `flatout.loader` does this. The gain:
the exposed milliseconds.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, savings, stalls
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COPY008", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all copies of batches that do not block."""
    blocked = {copy.where for copy in stalls.uploads(profile)}
    batch_copies = [
        copy
        for copy in copies.to_device(profile)
        if copy.pinned
        and copies.of_batches(copy)
        and copy.where is not None
        and ("non_blocking" in copy.where.source or copy.where not in blocked)
    ]
    exposed = sum(copy.exposed_ms for copy in batch_copies)
    saves = savings.within(profile, exposed)
    if not batch_copies or not savings.worth(profile, saves):
        return
    place = max(batch_copies, key=lambda copy: copy.exposed_ms).where
    yield Diagnosis(
        title="the copies of a batch do not overlap with computing",
        evidence=f"{copies.evidence(batch_copies)} from pinned memory, "
        f"{units.milliseconds(exposed)} of it "
        f"while nothing computes, {units.milliseconds(profile.anatomy.overlapped_copy_ms)} beside",
        cure=Cure(
            "Copy the next batch on a stream of its own while this one computes.",
            savings.lines(
                "around the loader",
                "for batch in loader:",
                "stream = torch.cuda.Stream()",
                "with torch.cuda.stream(stream):  # the next batch, before this step's forward",
                "    coming = [x.to(device, non_blocking=True) for x in next(batches)]",
                "torch.cuda.current_stream().wait_stream(stream)  # before it is used",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=str(place),
        saves_ms=saves,
        reason=f"{units.milliseconds(exposed)} of copies while nothing computes fit beside the "
        f"{units.milliseconds(profile.anatomy.busy_ms - exposed)} that the device is busy",
    )
