"""The script itself waits for the device in each step: synchronize().

## What it sees

A line calls `torch.cuda.synchronize()` (in a trace: cudaDeviceSynchronize) in each step, and the
device idles after it.

## Why it matters

It is meant for measuring. In a training loop it removes the host's lead, which hides the cost of
launching: after each call the device waits for new work.

## Cure

Leave it out; measure with events, or around many steps. The gain: the idle time.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC005", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    yield from stalls.diagnoses(
        profile,
        stalls.Stall.EXPLICIT,
        lambda sync: "the host waits for the whole device in each step",
        _cure,
    )


def _cure(sync: Sync) -> Cure:
    source = sync.where.source if sync.where is not None else ""
    return Cure(
        "Leave the call out; to measure, record events and read them after many steps.",
        savings.lines(sync.where, source or "torch.cuda.synchronize()"),
    )
