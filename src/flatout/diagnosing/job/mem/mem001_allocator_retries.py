"""The allocator runs out of memory, empties its cache and tries again.

## What it sees

`num_alloc_retries` grew while the steps were recorded: torch's allocator found no room, gave all
cached blocks back to the driver, and asked again.

## Why it matters

Freeing and allocating again makes the host wait for the device, for milliseconds each time; the
next step asks for the same blocks. It is also the last step before an out-of-memory error.

## Cure

Expandable segments (the boost allocator), which waste less; else a somewhat smaller batch.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, device_time, savings
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM001", severity=Severity.WARNING, since="0.2.0", hides=("MEM003", "MEM010"))


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the device."""
    watched = profile.seen
    if watched is None or watched.alloc_retries <= 0:
        return
    waited = device_memory.waited_ms(profile)
    saving = device_time.of_step(profile, waited, device_memory.waited_words(waited))
    yield Diagnosis(
        title=f"the allocator ran out of memory and tried again {watched.alloc_retries} times",
        evidence=f"in {watched.steps} steps; {device_memory.evidence(profile)}",
        cure=Cure(
            "Use expandable segments; if that is not enough, a smaller batch.",
            (device_memory.EXPANDABLE,),
        ),
        boost=savings.boost(profile, "allocator"),
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
