"""The batch is too small for the device: it waits for launches, and its memory is empty.

## What it sees

The device is idle for a quarter of the step or more because the host launches too slowly, and less
than half of its memory is in use.

## Why it matters

Launching a kernel costs the host the same for 8 samples as for 64. While the host is the slower
one, more samples a step cost no time.

## Evidence

The idle milliseconds, the batch size, and the memory in use.

## Cure

A larger batch: twice the samples in a step that takes as long, or as long as the device is then
busy. The learning rate may need to be raised too, and training changes: watch the loss. The gain is
per sample.

## References

- https://arxiv.org/abs/1706.02677
- https://arxiv.org/abs/1812.06162
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST002", severity=Severity.NOTE, since="0.2.0")
LEAST_SHARE = 0.25
MEMORY = 0.5


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader's batch."""
    anatomy, watched, loader = profile.anatomy, profile.seen, loading.loader(profile)
    wait = anatomy.part(Kind.WAIT_HOST)
    if not savings.accelerated(profile) or wait < LEAST_SHARE * anatomy.step_ms:
        return
    if watched is None or loader is None or not loader.batch_size:
        return
    if not watched.memory_total_bytes or watched.memory_peak_bytes is None:
        return
    used = watched.memory_peak_bytes / watched.memory_total_bytes
    # twice the samples: each half of the new step is bound by the host or the device
    sample_step_ms = max(anatomy.step_ms / 2, anatomy.step_ms - wait)
    saves = savings.within(profile, anatomy.step_ms - sample_step_ms)
    if used >= MEMORY or not savings.worth(profile, saves):
        return
    twice = 2 * loader.batch_size
    yield Diagnosis(
        title=f"a batch of {loader.batch_size} is too small to keep the device busy",
        evidence=f"idle {units.milliseconds(wait)} of {units.milliseconds(anatomy.step_ms)} for "
        f"launches; batch size {loader.batch_size}; {units.share(used)} of "
        f"{units.size(watched.memory_total_bytes)} in use",
        cure=Cure(
            f"Try batches of {twice}; watch the loss, and adapt the learning rate.",
            savings.lines(
                "in DataLoader(...)", f"batch_size={loader.batch_size}", f"batch_size={twice}"
            ),
        ),
        severity=Severity.NOTE,
        where=loading.line(profile),
        boost=savings.boost(profile, "batch-size"),
        saves_ms=saves,
        reason=f"twice the samples take {units.milliseconds(anatomy.step_ms)} of launching or "
        f"twice {units.milliseconds(anatomy.step_ms - wait)} of the rest, whichever is longer: "
        f"{units.milliseconds(sample_step_ms)} for as many as now",
    )
