"""Copies to the device from pinned memory make the host wait.

## What it sees

A line copies tensors from page-locked memory to the device without `non_blocking=True`, and the
copies run while nothing computes.

## Why it matters

A plain `.to(device)` returns when the bytes have arrived. The host cannot launch the next kernels
meanwhile, and the copy cannot start until the device has finished all that was launched before.

## Cure

`non_blocking=True` in the copies. The gain: the exposed milliseconds and the idle time after them.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, savings, stalls
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COPY002", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all blocking copies of batches."""
    pinned = [copy for copy in copies.to_device(profile) if copy.pinned and copies.of_batches(copy)]
    waits = stalls.uploads(profile)
    places = {sync.where for sync in waits}
    blocking = [
        copy
        for copy in pinned
        if copy.where is not None
        and "non_blocking" not in copy.where.source
        and copy.where in places
    ]
    if not blocking:
        return
    exposed = sum(copy.exposed_ms for copy in blocking)
    idle = sum(sync.idle_ms for sync in waits if sync.where in {copy.where for copy in blocking})
    saves = savings.within(profile, exposed + idle)
    if not savings.worth(profile, saves):
        return
    place = max(blocking, key=lambda copy: copy.exposed_ms).where
    yield Diagnosis(
        title="copies to the device make the host wait",
        evidence=f"{copies.evidence(blocking)} from pinned memory, {units.milliseconds(exposed)} "
        f"of it while nothing computes; the device is idle for {units.milliseconds(idle)} after it",
        cure=Cure(
            "Copy without waiting: non_blocking=True.",
            copies.not_blocking(place),
        ),
        severity=savings.severity(profile, saves),
        where=str(place),
        saves_ms=saves,
        reason=f"{units.milliseconds(exposed)} exposed and {units.milliseconds(idle)} idle after "
        "it run beside the computing when copied ahead",
    )
