"""A checkpoint or a log is written in nearly every step.

## What it sees

`torch.save` (or what calls it), or `print`, `logging`, TensorBoard's `add_scalar` or `wandb.log`,
in every second step or more often, from the training loop, and time in it. If a line of the log
reads a value from an accelerator, the SYNC codes report the wait for the device instead.

## Why it matters

For a checkpoint the host copies all weights, packs them and waits for the disk. Each line of a log
is formatted, written and flushed; a slow terminal, a network disk or an uploading logger takes
milliseconds. The device does nothing meanwhile.

## Cure

Save every few minutes, in the background: `flatout.Checkpoint` does this, atomically. Log every
fifty steps or so; collect values as tensors and write them together.

## References

- https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- https://docs.pytorch.org/docs/stable/tensorboard.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job.loop import loops
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP008", severity=Severity.WARNING, since="0.2.0")
LOGS = ("print", "logging", "SummaryWriter.add_scalar", "wandb.log")
SAVED_EVERY, LOGGED_EVERY = 100, 50
"""Steps for which one save, or one line of the log, is enough."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all checkpoints, one for all logging."""
    saves = loops.calls(profile, "torch.save")
    saving = loops.rarer(profile, saves, "saving", SAVED_EVERY)
    if saving.worth:
        lines = ("torch.save(state, path)", "if step % 1000 == 0:", "    torch.save(state, path)")
        title, cure = "a checkpoint in nearly every step", "Save every N steps, or minutes."
        yield loops.diagnosis(title, saves, saving, cure, lines)
    waiting = {str(sync.where) for sync in profile.syncs if sync.where is not None}
    logs = [call for call in loops.calls(profile, *LOGS) if call.where not in waiting]
    saving = loops.rarer(profile, logs, "logging", LOGGED_EVERY)
    if saving.worth:
        line = f"{logs[0].name}(...)"
        lines = (line, f"if step % {LOGGED_EVERY} == 0:", f"    {line}")
        yield loops.diagnosis("logging in each step", logs, saving, "Log every N steps.", lines)
