"""Clipping the gradients makes the host wait for the device.

## What it sees

A line that clips gradients, or compares their norm, reads a value from the device in each step.

## Why it matters

`clip_grad_norm_` itself needs no value on the host. With `error_if_nonfinite=True`, or if the
script reads the norm (`if norm > limit`, `norm.item()`), the host waits for the whole backward
pass, and the device then waits for the optimizer's launches.

## Cure

`torch.nn.utils.clip_grad_norm_(parameters, limit)` as it is, all on the device. The gain: the idle
time.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC006", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    yield from stalls.diagnoses(
        profile,
        stalls.Stall.CLIPPING,
        lambda _: "clipping the gradients waits for the device in each step",
        _cure,
    )


def _cure(sync: Sync) -> Cure:
    source = sync.where.source if sync.where is not None else ""
    after = source.replace(", error_if_nonfinite=True", "")
    if after == source:
        after = "torch.nn.utils.clip_grad_norm_(model.parameters(), limit)"
    return Cure(
        "Clip on the device and read no norm: clip_grad_norm_ without error_if_nonfinite.",
        savings.lines(sync.where, source, after),
    )
