"""Batches are copied from pinned memory, and still nothing computes meanwhile.

## What it sees

Copies of batches from page-locked memory that run while nothing computes: without
`non_blocking=True`, so that the host waits for them, or with it, in the stream of the kernels.

## Why it matters

A plain `.to(device)` returns when the bytes have arrived. The host cannot launch the next kernels
meanwhile, and the copy cannot start until the device has finished all that was launched before. A
copy that does not block still waits for its turn in the stream, and the kernels after it wait for
the bytes; on a stream of its own it overlaps with the kernels of the previous step.

## Cure

`non_blocking=True` in the copies; then copy the next batch on a side stream while this one
computes, as `flatout.loader` does. The gain: the exposed milliseconds, and the idle time after
those that block.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
- https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, savings, stalls
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Copy, Profile, Sync

CHECK = Check(code="COPY002", severity=Severity.WARNING, since="0.2.0")
SIDE_STREAM = (
    "for batch in loader:",
    "stream = torch.cuda.Stream()",
    "with torch.cuda.stream(stream):  # the next batch, before this step's forward",
    "    coming = [x.to(device, non_blocking=True) for x in next(batches)]",
    "torch.cuda.current_stream().wait_stream(stream)  # before it is used",
)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all copies that block, and one for those that do not."""
    uploads = stalls.uploads(profile)
    waiting = {sync.where for sync in uploads}
    pinned = [copy for copy in copies.to_device(profile) if copy.pinned and copies.of_batches(copy)]
    blocking: list[Copy] = []
    others: list[Copy] = []
    for copy in pinned:
        if copy.where is not None:
            blocks = copy.where in waiting and "non_blocking" not in copy.where.source
            (blocking if blocks else others).append(copy)
    places = {copy.where for copy in blocking}
    yield from _finding(profile, blocking, [sync for sync in uploads if sync.where in places])
    yield from _finding(profile, others, [])


def _finding(profile: Profile, batches: list[Copy], waits: list[Sync]) -> Iterator[Diagnosis]:
    """waits: those of the host for these copies; empty if they do not block."""
    exposed, idle = sum(copy.exposed_ms for copy in batches), sum(sync.idle_ms for sync in waits)
    saves = savings.within(profile, exposed + idle)
    if not batches or not savings.worth(profile, saves):
        return
    place = max(batches, key=lambda copy: copy.exposed_ms).where
    side = savings.lines("around the loader", *SIDE_STREAM)
    yield Diagnosis(
        title="copies to the device make the host wait"
        if waits
        else "the copies of a batch do not overlap with computing",
        evidence=f"{copies.evidence(batches)} from pinned memory, {units.milliseconds(exposed)} "
        f"of it while nothing computes; the device is idle for {units.milliseconds(idle)} after it",
        cure=Cure("Copy without waiting: non_blocking=True.", copies.not_blocking(place))
        if waits
        else Cure("Copy the next batch on a stream of its own while this one computes.", side),
        severity=savings.severity(profile, saves),
        where=str(place),
        saves_ms=saves,
        reason=f"{units.milliseconds(exposed)} exposed and {units.milliseconds(idle)} idle after "
        "it run beside the computing when copied ahead",
    )
