"""Memory is nearly full: a slightly longer input ends the run.

## What it sees

The most that was in use is above 93% of the device's memory (on a CPU: of the machine's), and the
allocator has not run out of it yet (MEM001).

## Why it matters

Nothing is slower yet. But one longer sequence, an evaluation with a larger batch or another
process ends the job hours later; on a CPU the system begins to swap, or kills the process.

## Cure

A slightly smaller batch with gradient accumulation, 16-bit activations (autocast), or
checkpointing of the largest blocks.

## References

- https://docs.pytorch.org/docs/stable/checkpoint.html
- https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM003", severity=Severity.NOTE, since="0.2.0")
FULL = 0.93


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the device."""
    used = device_memory.share_used(profile)
    if used is None or not FULL <= used <= 1.5:  # beyond 1.5 the two figures do not match
        return
    if profile.seen is not None and profile.seen.alloc_retries > 0:
        return
    yield Diagnosis(
        title=f"memory is {units.share(used)} full",
        evidence=device_memory.evidence(profile),
        cure=Cure(
            "Leave some room: a smaller batch, 16-bit activations or checkpointing.",
            savings.lines(
                None, "", "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
            ),
        ),
        boost=savings.boost(profile, "bf16-autocast"),
    )
