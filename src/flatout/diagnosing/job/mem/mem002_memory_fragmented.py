"""The allocator holds much more memory than is in use: it is fragmented.

## What it sees

Memory that the allocator has reserved beyond the peak in use: a fifth of the device or more.

## Why it matters

The caching allocator cuts blocks and cannot join those of different segments. The space left
between them is lost for larger tensors: jobs run out of memory with gigabytes free, and the batch
stays smaller than it could be.

## Cure

Expandable segments (the boost allocator); inputs of few different shapes.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
- https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM002", severity=Severity.NOTE, since="0.2.0")
SHARE = 0.2
TIGHT = 0.9
"""Share of the device's memory from which reserved memory is a problem."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the device."""
    watched = profile.seen
    if watched is None or not savings.accelerated(profile):
        return
    reserved, peak, total = (
        watched.memory_reserved_bytes,
        watched.memory_peak_bytes,
        watched.memory_total_bytes,
    )
    if not reserved or not peak or not total or reserved - peak < SHARE * total:
        return
    yield Diagnosis(
        title=f"{units.size(reserved - peak)} reserved beyond what is ever in use",
        evidence=device_memory.evidence(profile),
        cure=Cure("Use expandable segments.", (device_memory.EXPANDABLE,)),
        severity=Severity.WARNING if reserved > TIGHT * total else None,
        boost=savings.boost(profile, "allocator"),
    )
