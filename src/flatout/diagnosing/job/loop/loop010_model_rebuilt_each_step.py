"""Modules are rebuilt in each step.

## What it sees

A `torch.nn.Module` that the loop creates in every second step or more often, and time in it.

## Why it matters

Building a module allocates and draws all its weights; on an accelerator they are then copied there.
A rebuilt model has also lost what it learned.

## Cure

Build it once before the loop, and call it there.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
- https://docs.pytorch.org/tutorials/beginner/basics/buildmodel_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.diagnosing.job.loop import loops
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP010", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all of them."""
    constructions = loops.calls(profile, "Module()")
    took = loops.ms(constructions)
    saving = device_time.of_step(
        profile, took, f"building takes {units.milliseconds(took)} a step, and is needed once"
    )
    if not saving.worth:
        return
    name = constructions[0].detail or "Module"
    yield Diagnosis(
        title=f"{name} is rebuilt in each step: {units.milliseconds(took)}",
        evidence=loops.evidence(constructions),
        cure=Cure(
            "Build it once, before the loop.",
            savings.lines(
                loops.where(constructions),
                f"    module = {name}(...)  # in the loop",
                f"module = {name}(...)  # before it",
            ),
        ),
        severity=saving.severity,
        where=loops.where(constructions),
        saves_ms=saving.ms,
        reason=saving.reason,
    )
