"""Saving a checkpoint in the loop makes the device wait.

## What it sees

On an accelerator: `torch.save` is called in (nearly) each step, or a line that saves reads the
weights from the device while the device has nothing else to do.

## Why it matters

Each tensor is copied to the host and written to the disk before the next step may begin.

## Cure

Save every few hundred steps, in the background: `torch.distributed.checkpoint.async_save`, or
`flatout.Checkpoint`. The gain: the idle time of the calls.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.diagnosing.job.sync import stalling_calls
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="SYNC009", severity=Severity.WARNING, since="0.2.0")
NAMES = ("torch.save",)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all such calls."""
    calls = stalling_calls.of(profile, stalls.Stall.SAVING, NAMES)
    if calls is None:
        return
    yield Diagnosis(
        title=f"checkpoints are saved {calls.number:,.1f} times a step while the device waits",
        evidence=f"torch.save: {calls.number:,.1f} calls and {units.milliseconds(calls.ms)} a "
        f"step; the device idle for {units.milliseconds(calls.idle_ms)}",
        cure=Cure(
            "Save every 500 steps, in the background.",
            savings.lines(
                calls.where,
                "torch.save(model.state_dict(), path)",
                "if step % 500 == 0:",
                "    checkpoint.save(step)  # checkpoint = flatout.Checkpoint(folder, ...)",
            ),
        ),
        severity=savings.severity(profile, calls.saves_ms),
        where=calls.where,
        saves_ms=calls.saves_ms,
        reason=calls.reason,
    )
