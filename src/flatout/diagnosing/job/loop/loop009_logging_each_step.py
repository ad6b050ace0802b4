"""Logging takes a share of each step.

## What it sees

`print`, `logging`, TensorBoard's `add_scalar` or `wandb.log` in every second step or more often,
and time in it. If it reads a value from an accelerator, the SYNC codes report the wait for the
device instead.

## Why it matters

Each line is formatted, written and flushed while the loop waits; a slow terminal, a network disk
or an uploading logger takes milliseconds.

## Cure

Log every fifty steps or so; collect values as tensors and write them together.

## References

- https://docs.pytorch.org/docs/stable/tensorboard.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job.loop import loops
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP009", severity=Severity.WARNING, since="0.2.0")
NAMES = ("print", "logging", "SummaryWriter.add_scalar", "wandb.log")
EVERY = 50
"""Steps for which one line of the log is enough."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all logging."""
    waiting = {str(sync.where) for sync in profile.syncs if sync.where is not None}
    log_calls = [call for call in loops.calls(profile, *NAMES) if call.where not in waiting]
    saving = loops.rarer(profile, log_calls, "logging", EVERY)
    if not saving.worth:
        return
    line = f"{log_calls[0].name}(...)"
    lines = (line, f"if step % {EVERY} == 0:", f"    {line}")
    yield loops.diagnosis("logging in each step", log_calls, saving, "Log every N steps.", lines)
