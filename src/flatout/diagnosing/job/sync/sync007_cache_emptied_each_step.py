"""The loop gives torch's cached memory back to the driver in each step: empty_cache().

## What it sees

`torch.cuda.empty_cache()` is called in the loop.

## Why it matters

Freeing memory waits for the device, and the next step has to ask the driver for it again, which
also waits. The cache costs nothing: torch reuses it. If memory runs out, the cache is not the
cause.

## Cure

Leave it out. Against fragmentation: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. The gain:
the idle time after the calls, or their time on the host if only that is known.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.diagnosing.job.sync import stalling_calls
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="SYNC007", severity=Severity.WARNING, since="0.2.0")
NAMES = ("torch.cuda.empty_cache",)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all such calls."""
    calls = stalling_calls.of(profile, stalls.Stall.CACHE, NAMES)
    if calls is None:
        return
    yield Diagnosis(
        title=f"torch's memory cache is emptied {calls.number:,.1f} times a step",
        evidence=f"torch.cuda.empty_cache(): {calls.number:,.1f} calls and "
        f"{units.milliseconds(calls.ms)} a step, the device idle for "
        f"{units.milliseconds(calls.idle_ms)} after it",
        cure=Cure(
            "Leave the call out: torch reuses its cache.",
            savings.lines(calls.where, "torch.cuda.empty_cache()"),
        ),
        severity=savings.severity(profile, calls.saves_ms),
        where=calls.where,
        saves_ms=calls.saves_ms,
        reason=calls.reason,
    )
