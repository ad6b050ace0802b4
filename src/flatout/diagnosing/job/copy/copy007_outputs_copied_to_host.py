"""Large tensors are copied from the device to the host in each step.

## What it sees

A line copies 1 MiB or more from the device to the host in each step: outputs, activations or
gradients kept for later, statistics made with NumPy.

## Why it matters

The host waits until the device has computed the tensor and sent it, and the device then waits for
the host. Most of what is done with it (a mean, an arg max, an accuracy) is one small kernel.

## Evidence

The copies of the line, the milliseconds of them while nothing computes, and for how long the device
is idle after them.

## Cure

Reduce on the device and copy the result, every so many steps; where the whole is needed, copy to
pinned memory with `non_blocking=True`. The gain: the exposed copy and the idle time after it.

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
    for one in copies.to_host(profile):
        if one.calls >= 0.5 and one.bytes >= stalls.LARGE:
            yield from _line(profile, one)


def _line(profile: Profile, one: Copy) -> Iterator[Diagnosis]:
    idle = sum(
        item.idle_ms for item in profile.syncs if item.where is not None and item.where == one.where
    )
    saves = savings.within(profile, one.exposed_ms + idle)
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"{units.size(one.bytes)} are copied to the host in each step",
        evidence=f"{copies.told([one])}, {units.milliseconds(one.exposed_ms)} of it while nothing "
        f"computes; the device idle for {units.milliseconds(idle)} after it",
        cure=Cure(
            "Reduce it on the device and copy the result, every so many steps.",
            savings.lines(
                one.where,
                one.where.source if one.where is not None else "",
                "correct += (outputs.argmax(1) == labels).sum()  # stays on the device",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=str(one.where) if one.where is not None else None,
        saves_ms=saves,
        reason=f"the exposed copy of {units.milliseconds(one.exposed_ms)} and "
        f"{units.milliseconds(idle)} in which the device waits go",
    )
