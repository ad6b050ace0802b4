"""A checkpoint is written in nearly every step.

## What it sees

`torch.save` (or what calls it) in every second step or more often, from the training loop.

## Why it matters

The host copies all weights, packs them and waits for the disk, and the device does nothing
meanwhile.

## Cure

Save every few minutes, in the background: `flatout.Checkpoint` does this, atomically.

## References

- https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job.loop import loops
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP008", severity=Severity.WARNING, since="0.2.0")
EVERY = 100
"""Steps for which one save is enough."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    saves = loops.calls(profile, "torch.save")
    saving = loops.rarer(profile, saves, "saving", EVERY)
    if not saving.worth:
        return
    lines = ("torch.save(state, path)", "if step % 1000 == 0:", "    torch.save(state, path)")
    yield loops.diagnosis(
        "a checkpoint in nearly every step", saves, saving, "Save every N steps, or minutes.", lines
    )
