"""Saving a checkpoint in the loop makes the device wait.

## What it sees

On an accelerator: `torch.save` is called in (nearly) each step, or a line that saves reads the
weights from the device while the device has nothing else to do.

## Why it matters

Each tensor is copied to the host and written to the disk before the next step may begin.

## Evidence

The calls and their milliseconds a step, and for how long the device is idle.

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
from flatout.nouns import units
from flatout.nouns.anatomy import WAITS
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="SYNC009", severity=Severity.WARNING, since="0.2.0")
CALL = "torch.save"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all such calls."""
    if not savings.accelerated(profile):
        return
    syncs = stalls.of(profile, stalls.Stall.SAVING)
    watched_calls = profile.seen.calls if profile.seen is not None else ()
    calls = [call for call in watched_calls if call.name == CALL and call.calls >= stalls.EACH_STEP]
    if not (syncs or calls):
        return
    spent = sum(call.s for call in calls) * 1000
    waits = profile.anatomy.part(*WAITS)
    idle = max(sum(sync.idle_ms for sync in syncs), min(spent, waits))
    saves = savings.within(profile, idle)
    if not savings.worth(profile, saves):
        return
    number = sum(call.calls for call in calls) or sum(sync.calls for sync in syncs)
    where = next((call.where for call in calls if call.where), None)
    where = where or next((str(sync.where) for sync in syncs if sync.where is not None), None)
    yield Diagnosis(
        title=f"checkpoints are saved {number:,.1f} times a step while the device waits",
        evidence=f"torch.save: {number:,.1f} calls and {units.milliseconds(spent)} a step; the "
        f"device idle for {units.milliseconds(idle)}",
        cure=Cure(
            "Save every 500 steps, in the background.",
            savings.lines(
                where,
                "torch.save(model.state_dict(), path)",
                "if step % 500 == 0:",
                "    checkpoint.save(step)  # checkpoint = flatout.Checkpoint(folder, ...)",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=where,
        saves_ms=saves,
        reason=f"{units.milliseconds(saves)} of a step in which the device waits for these calls",
    )
