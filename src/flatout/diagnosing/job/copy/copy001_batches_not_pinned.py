"""The loader's batches are copied to the device from pageable memory.

## What it sees

Copies from host to device start from pageable memory, and the DataLoader has `pin_memory=False`.

## Why it matters

The device reads page-locked memory directly. Pageable memory is staged through a buffer of the
driver: half as fast, the host waits for it, and it cannot overlap with computing.

## Cure

`pin_memory=True` in the DataLoader, and `non_blocking=True` in the loop's copies. The gain: the
exposed milliseconds less the time of the same bytes from pinned memory (half of them if that was
not measured).

## References

- https://docs.pytorch.org/docs/stable/data.html#memory-pinning
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COPY001", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader's batches."""
    loader = loading.loader(profile)
    if loader is None or loader.pin_memory or loader.batch_on_device:
        return
    pageable = [copy for copy in copies.pageable(profile) if copies.of_batches(copy)]
    moved, exposed = sum(copy.bytes for copy in pageable), sum(copy.exposed_ms for copy in pageable)
    if not pageable:
        return
    pinned = copies.pinned_ms(profile, moved)
    after = exposed / 2 if pinned is None else min(pinned, exposed)
    saves = savings.within(profile, exposed - after)
    if not savings.worth(profile, saves):
        return
    place = max(pageable, key=lambda copy: copy.bytes).where
    yield Diagnosis(
        title=f"batches of {units.size(moved)} are copied from memory that is not pinned",
        evidence=f"{units.size(moved)} a step from pageable memory, "
        f"{units.milliseconds(exposed)} of it while nothing computes"
        f"{copies.bandwidths(profile)}; pin_memory=False",
        cure=Cure(
            "Pin the batches: pin_memory=True in the DataLoader, non_blocking=True in the loop.",
            (
                *savings.lines("in DataLoader(...)", "", "pin_memory=True,"),
                *copies.not_blocking(place),
            ),
        ),
        severity=savings.severity(profile, saves),
        where=str(place) if place is not None else loading.line(profile),
        boost=savings.boost(profile, "loader-pin-memory"),
        saves_ms=saves,
        reason=f"{units.milliseconds(exposed)} exposed now; from pinned memory the same bytes take "
        + (f"{units.milliseconds(after)}" if pinned is not None else "about half of that"),
    )
