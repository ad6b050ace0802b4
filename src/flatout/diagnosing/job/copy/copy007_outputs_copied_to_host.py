"""Large tensors are copied from the device to the host in each step.

## What it sees

A line copies 1 MiB or more from the device to the host in each step: outputs, activations or
gradients kept for later, statistics made with NumPy.

## Why it matters

The host waits until the device has computed the tensor and sent it, and the device then waits for
the host. Most uses of it (a mean, an arg max, an accuracy) are one small kernel.

## Cure

Reduce on the device and copy the result, every N steps; if all of it is needed, copy to pinned
memory with `non_blocking=True`. The gain: the exposed copy and the idle time after it.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, savings, stalls
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Copy, Profile

CHECK = Check(code="COPY007", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    for copy in copies.to_host(profile):
        if copy.calls >= 0.5 and copy.bytes >= stalls.LARGE:
            yield from _line(profile, copy)


def _line(profile: Profile, copy: Copy) -> Iterator[Diagnosis]:
    idle = sum(
        sync.idle_ms
        for sync in profile.syncs
        if sync.where is not None and sync.where == copy.where
    )
    saves = savings.within(profile, copy.exposed_ms + idle)
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"{units.size(copy.bytes)} are copied to the host in each step",
        evidence=f"{copies.evidence([copy])}, {units.milliseconds(copy.exposed_ms)} of it while "
        f"nothing computes; the device idle for {units.milliseconds(idle)} after it",
        cure=Cure(
            "Reduce it on the device and copy the result, every N steps.",
            savings.lines(
                copy.where,
                copy.where.source if copy.where is not None else "",
                "correct += (outputs.argmax(1) == labels).sum()  # stays on the device",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=str(copy.where) if copy.where is not None else None,
        saves_ms=saves,
        reason=f"the exposed copy of {units.milliseconds(copy.exposed_ms)} and "
        f"{units.milliseconds(idle)} in which the device waits go",
    )
