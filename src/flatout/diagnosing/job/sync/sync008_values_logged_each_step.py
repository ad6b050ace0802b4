"""Values from the device are logged in each step.

## What it sees

A line that logs (a logger, TensorBoard's `add_scalar`, an experiment tracker, a progress bar's
`set_postfix`) reads tensors on the device in each step, and the device idles after it.

## Why it matters

A logged tensor is read: the host waits until the device has computed it, and the device then waits
for the host. Curves do not need a point for each step.

## Cure

Log every N steps the mean of values added up on the device. The gain: the idle time.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/docs/stable/tensorboard.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC008", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    yield from stalls.diagnoses(
        profile,
        stalls.Stall.LOGGING,
        lambda _: "values from the device are logged in each step",
        _cure,
    )


def _cure(sync: Sync) -> Cure:
    source = sync.where.source if sync.where is not None else ""
    return Cure(
        "Log every 50 steps.",
        savings.lines(sync.where, source, "if step % 50 == 0:", f"    {source}"),
    )
