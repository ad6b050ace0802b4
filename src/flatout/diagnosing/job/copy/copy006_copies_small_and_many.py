"""Many small copies from host to device in each step.

## What it sees

Eight copies or more of a step to the device, each of less than 64 KiB: lengths, masks, labels or
losses' weights moved one by one.

## Why it matters

Each costs its launch, a wait of the host if the memory is not pinned, and several microseconds on
the device, whatever its size.

## Cure

Combine the values on the host and copy them once. The gain: all but one of the copies, with the
idle time after them.

## References

- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
- https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#data-transfer-between-host-and-device
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, savings, stalls
from flatout.nouns import amdahl, units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COPY006", severity=Severity.WARNING, since="0.2.0")
MANY = 8


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all small copies together."""
    small_copies = [
        copy
        for copy in copies.to_device(profile)
        if copies.small(copy) and not copies.built_here(copy) and copy.calls > 0
    ]
    calls = sum(copy.calls for copy in small_copies)
    if calls < MANY:
        return
    places = {copy.where for copy in small_copies if copy.where is not None}
    idle = sum(sync.idle_ms for sync in stalls.uploads(profile) if sync.where in places)
    exposed = sum(copy.exposed_ms for copy in small_copies)
    saves = savings.within(profile, amdahl.saved(exposed + idle, calls))
    if not savings.worth(profile, saves):
        return
    place = max(small_copies, key=lambda copy: copy.calls).where
    yield Diagnosis(
        title=f"{calls:,.0f} small copies to the device in each step",
        evidence=f"{copies.evidence(small_copies)}, {units.milliseconds(exposed)} of it while "
        f"nothing computes; the device idle for {units.milliseconds(idle)} after it",
        cure=Cure(
            "Combine the values on the host and copy them once.",
            savings.lines(
                place,
                place.source if place is not None else "",
                "moved = torch.stack(values).to(device, non_blocking=True)",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=str(place) if place is not None else None,
        saves_ms=saves,
        reason=f"one copy instead of {calls:,.0f}: of {units.milliseconds(exposed)} exposed and "
        f"{units.milliseconds(idle)} idle, {units.milliseconds(saves)} go",
    )
