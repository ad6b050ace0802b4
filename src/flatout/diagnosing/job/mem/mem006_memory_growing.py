"""Memory grows with each step.

## What it sees

Memory in use after each step rises steadily over the watched steps, by more than noise.

## Why it matters

Something holds tensors of past steps: outputs in a list, a hook, an unbounded cache. The job ends
with an out-of-memory error, the sooner the smaller the device.

## Cure

Look for what is appended in the loop, and keep `.detach()`ed numbers. Where it is: record with
`torch.cuda.memory._record_memory_history()` and look at the snapshot; on a CPU, `tracemalloc`.

## References

- https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
- https://docs.pytorch.org/docs/stable/notes/faq.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM006", severity=Severity.WARNING, since="0.2.0")
LEAST = 64 * 2**10
"""Bytes a step on an accelerator, where each tensor is counted."""
LEAST_CPU = 2 * 2**20
"""Bytes a step of a process on a CPU, which grows by itself for a while."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the job."""
    watched = profile.seen
    if watched is None:
        return
    grown = device_memory.growth(watched.memory_bytes)
    if grown is None or grown < (LEAST if savings.accelerated(profile) else LEAST_CPU):
        return
    now = watched.memory_bytes[-1]
    lasts = ""
    if watched.memory_total_bytes and watched.memory_total_bytes > now:
        lasts = f"; full after {(watched.memory_total_bytes - now) / grown:,.0f} more steps"
    yield Diagnosis(
        title=f"memory grows by {units.size(grown)} a step",
        evidence=f"{units.size(watched.memory_bytes[0])} after the first watched step, "
        f"{units.size(now)} after {len(watched.memory_bytes)}{lasts}",
        cure=Cure(
            "Find what keeps tensors of past steps, and keep numbers instead.",
            savings.lines(None, "history.append(output)", "history.append(output.detach().cpu())"),
        ),
    )
