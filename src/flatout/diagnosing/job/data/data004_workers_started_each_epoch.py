"""The loader restarts its workers in each epoch.

## What it sees

The DataLoader has workers and `persistent_workers=False`, several epochs began while the job was
watched, and each begins with a wait for new processes.

## Why it matters

At the end of an epoch the workers end; at the beginning of the next one they are forked (or, with
spawn, import all modules and unpickle the dataset again) and start with empty queues. Meanwhile
nothing trains. Short epochs lose most.

## Cure

`persistent_workers=True`. The gain: that time, spread over the steps of an epoch. The measured step
is a median and does not contain it; the gain is that of the mean step.

## References

- https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
- https://github.com/pytorch/pytorch/issues/15849
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA004", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader."""
    loader, watched = loading.loader(profile), profile.seen
    if loader is None or watched is None or loader.num_workers < 1 or loader.persistent_workers:
        return
    restart_ms = loading.restarting_ms(profile)
    if not loader.batches or watched.loader_start_s is None or not restart_ms:
        return
    saves = savings.beside(profile, restart_ms)
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"loader workers are restarted in each epoch of {loader.batches} batches",
        evidence=f"from iter(loader) to the first batch {units.duration(watched.loader_start_s)}, "
        f"{watched.epochs} times while watched; {loader.num_workers} workers, "
        f"{loader.batches} batches an epoch",
        cure=Cure(
            "Keep the workers between epochs: persistent_workers=True in the DataLoader.",
            savings.lines(
                "in DataLoader(...)",
                f"num_workers={loader.num_workers}",
                f"num_workers={loader.num_workers}, persistent_workers=True",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=loading.line(profile),
        saves_ms=saves,
        reason=f"{units.milliseconds(restart_ms * loader.batches)} of start-up an epoch are "
        f"{units.milliseconds(restart_ms)} for each of its {loader.batches} steps, beside the "
        f"median step of {units.milliseconds(profile.anatomy.step_ms)}",
    )
