"""The host waits for the device in each step, in a call that no other check covers.

## What it sees

A synchronising call in each step that no other check recognises by its name or its line, after
which the device idles.

## Why it matters

The host launches kernels ahead of the device. A call that waits removes that lead: afterwards the
device has nothing to do until the next launches arrive.

## Cure

Find the part of the line that needs a value from the device;
`torch.cuda.set_sync_debug_mode("warn")` names each such call. The gain: the idle time.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC012", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    yield from stalls.diagnoses(
        profile,
        stalls.Stall.OTHER,
        lambda sync: f"the host waits for the device in each step ({sync.name})"[:100],
        _cure,
    )


def _cure(sync: Sync) -> Cure:
    return Cure(
        "Let torch name the call that waits, and remove it from the step.",
        savings.lines(sync.where, "", 'torch.cuda.set_sync_debug_mode("warn")  # before the loop'),
    )
