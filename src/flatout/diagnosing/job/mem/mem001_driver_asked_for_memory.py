"""While steps run, torch's allocator asks the driver for memory, and the device waits.

## What it sees

- `num_alloc_retries` grew while the steps were recorded: the allocator found no room, gave all
  cached blocks back to the driver, and asked again.
- Else: gaps in which the device did nothing and the host was in cudaMalloc, cudaFree or a host
  allocation, although the steps are all alike by now.

## Why it matters

The allocator caches its memory: in a steady state it asks for none. Freeing and allocating makes
the host wait for the device, for milliseconds each time. Reasons: memory is nearly full, and an
out-of-memory error comes next; `empty_cache()` in the loop; sizes that change from step to step;
caching turned off; a library with its own allocator.

## Cure

Expandable segments (the boost allocator), which waste less; no `torch.cuda.empty_cache()` in the
loop, inputs of few shapes; else a somewhat smaller batch.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
- https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
- https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, device_time, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM001", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the device."""
    watched = profile.seen
    waited = device_memory.waited_ms(profile)
    saving = device_time.of_step(profile, waited, device_memory.waited_words(waited))
    boost = savings.boost(profile, "allocator")
    if watched is not None and watched.alloc_retries > 0:
        yield Diagnosis(
            title=f"the allocator ran out of memory and tried again {watched.alloc_retries} times",
            evidence=f"in {watched.steps} steps; {device_memory.evidence(profile)}",
            cure=Cure(
                "Use expandable segments; if that is not enough, a smaller batch.",
                (device_memory.EXPANDABLE,),
            ),
            boost=boost,
            saves_ms=saving.ms if saving.worth else None,
            reason=saving.reason if saving.worth else "",
        )
    elif saving.worth:
        gaps = [gap for gap in profile.gaps if device_memory.ASKING.fullmatch(gap.doing)]
        gaps.sort(key=lambda gap: -gap.ms)
        yield Diagnosis(
            title=f"the driver is asked for memory in each step: {units.milliseconds(waited)}",
            evidence="; ".join(
                f"{gap.doing}{f' at {gap.where}' if gap.where else ''}: {gap.count:.3g} times, "
                f"{units.milliseconds(gap.ms)}"
                for gap in gaps[:3]
            ),
            cure=Cure(
                "Do not empty the cache in the loop, use few input shapes, and expandable "
                "segments.",
                (*savings.lines(None, "torch.cuda.empty_cache()"), device_memory.EXPANDABLE),
            ),
            severity=saving.severity,
            where=next((str(gap.where) for gap in gaps if gap.where is not None), None),
            boost=boost,
            saves_ms=saving.ms,
            reason=saving.reason,
        )
