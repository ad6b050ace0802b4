"""A checkpoint is written in nearly every step.

## What it sees

`torch.save` (or what calls it) in every second step or more often, from the training loop.

## Why it matters

The host copies all weights, packs them and waits for the disk, and the device does nothing
meanwhile.

## Evidence

How often, how long, and from which line.

## Cure

Save every few minutes, in the background: `flatout.Checkpoint` does this, atomically.

## References

- https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.diagnosing.job.loop import loops
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP008", severity=Severity.WARNING, since="0.2.0")
KEPT = 0.01
"""One in a hundred is enough."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    saves = loops.calls(profile, "torch.save")
    took = loops.ms(saves)
    saving = device_time.of_step(
        profile,
        took * (1 - KEPT),
        f"saving takes {units.milliseconds(took)} a step; one in a hundred steps is enough",
    )
    if not saving.worth:
        return
    where = loops.where(saves)
    yield Diagnosis(
        title=f"a checkpoint in nearly every step: {units.milliseconds(took)}",
        evidence=loops.evidence(saves),
        cure=Cure(
            "Save every N steps, or minutes.",
            savings.lines(
                where,
                "torch.save(state, path)",
                "if step % 1000 == 0:",
                "    torch.save(state, path)",
            ),
        ),
        severity=saving.severity,
        where=where,
        saves_ms=saving.ms,
        reason=saving.reason,
    )
