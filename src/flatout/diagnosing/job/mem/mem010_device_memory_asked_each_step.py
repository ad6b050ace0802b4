"""In every step the device waits while the host asks the driver for memory.

## What it sees

Gaps in which the device did nothing and the host was in cudaMalloc, cudaFree or a host
allocation, although the steps are all alike by now.

## Why it matters

Torch's allocator caches its memory: in a steady state it asks for none. These calls make the host
wait for the device. Reasons: `empty_cache()` in the loop, sizes that change from step to step,
caching turned off, or a library with its own allocator.

## Cure

No `torch.cuda.empty_cache()` in the loop, inputs of few shapes, expandable segments (the boost
allocator).

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
- https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, device_time, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM010", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    waited = device_memory.waited_ms(profile)
    saving = device_time.of_step(profile, waited, device_memory.waited_words(waited))
    if not saving.worth:
        return
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
            "Do not empty the cache in the loop, use few input shapes, and expandable segments.",
            (*savings.lines(None, "torch.cuda.empty_cache()"), device_memory.EXPANDABLE),
        ),
        severity=saving.severity,
        where=next((str(gap.where) for gap in gaps if gap.where is not None), None),
        boost=savings.boost(profile, "allocator"),
        saves_ms=saving.ms,
        reason=saving.reason,
    )
