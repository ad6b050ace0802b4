"""Deterministic algorithms are on: they are slower and fill memory that is never read.

## What it sees

`torch.use_deterministic_algorithms(True)` or `torch.backends.cudnn.deterministic = True` in a job
that trains.

## Why it matters

cuDNN and scatter operators then take slower algorithms, and torch fills every new tensor with NaN
before it is used (`torch.utils.deterministic.fill_uninitialized_memory`): one more pass over
memory for each.

## Cure

Use determinism only if a run must repeat bit for bit. If it has to stay:
`torch.utils.deterministic.fill_uninitialized_memory = False`.

## References

- https://docs.pytorch.org/docs/stable/notes/randomness.html
- https://docs.pytorch.org/docs/stable/deterministic.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="KERN011", severity=Severity.NOTE, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the job."""
    deterministic = (profile.seen is not None and profile.seen.deterministic) or (
        profile.job is not None and profile.job.deterministic
    )
    if not deterministic:
        return
    filling = operators.called(profile, r"aten::fill_(\.\w+)?")
    took = operators.total(profile, filling)
    saving = device_time.of_device(
        profile, took, f"filling new tensors takes {units.milliseconds(took)}"
    )
    yield Diagnosis(
        title="deterministic algorithms are on",
        evidence="torch.are_deterministic_algorithms_enabled() or cudnn.deterministic"
        + (f"; {operators.evidence(profile, filling)}" if saving.worth else ""),
        cure=Cure(
            "Leave it out where runs need not repeat bit for bit; otherwise turn off at least the "
            "filling.",
            savings.lines(
                None,
                "torch.use_deterministic_algorithms(True)",
                "torch.utils.deterministic.fill_uninitialized_memory = False",
            ),
        ),
        severity=saving.severity if saving.worth else None,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
