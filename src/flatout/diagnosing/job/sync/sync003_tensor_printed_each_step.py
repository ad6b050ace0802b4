"""A tensor on the device is printed in each step.

## What it sees

A line with `print` reads tensors on the device in each step, and the device idles after it.

## Why it matters

Printing a tensor needs its values: the host waits until the device has computed them, and the
device then waits for the host. Formatting a large tensor reads it several times.

## Cure

Print every N steps. The gain: the idle time.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC003", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    yield from stalls.diagnoses(
        profile, stalls.Stall.PRINT, lambda _: "a tensor is printed in each step", _cure
    )


def _cure(sync: Sync) -> Cure:
    source = sync.where.source if sync.where is not None else ""
    return Cure(
        "Print every 50 steps.",
        savings.lines(sync.where, source, "if step % 50 == 0:", f"    {source}"),
    )
