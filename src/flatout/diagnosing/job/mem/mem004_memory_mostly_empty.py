"""Most of the accelerator's memory is empty, and a larger batch would amortise fixed costs.

## What it sees

Less than half of the device's memory is ever in use, and a share of each step does not grow with
the batch: waiting for launches, the optimizer's update, exposed communication.

## Why it matters

These costs come once a step. A batch of twice the size spreads them over twice the samples. The
predicted gain is per sample.

## Cure

A larger batch, as long as the model still learns as well: the learning rate often needs to be
raised too.

## References

- https://arxiv.org/abs/1706.02677
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.max_memory_allocated.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, device_time, savings
from flatout.nouns import amdahl, units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM004", severity=Severity.NOTE, since="0.2.0")
EMPTY = 0.5
FILLED = 0.85
"""The most of the memory that a larger batch should use."""
FIXED = (Kind.WAIT_HOST, Kind.OPTIMIZER, Kind.COMMUNICATION)
FIXED_COPIES = 4
"""Weights, gradients and two moments: memory that does not grow with the batch."""
LARGEST = 16


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the device."""
    used = device_memory.share_used(profile)
    if used is None or used >= EMPTY or not savings.accelerated(profile):
        return
    factor = _factor(profile)
    if factor < 2:
        return
    fixed = profile.anatomy.part(*FIXED)
    saved = amdahl.saved(fixed, factor)
    saving = device_time.of_step(
        profile,
        saved,
        f"launching, update and communication take {units.milliseconds(fixed)} whatever the batch: "
        f"at {factor} times the batch {units.milliseconds(saved)} less for the samples of a step",
    )
    if not saving.worth:
        return
    loaders = profile.job.loaders if profile.job is not None else ()
    batch = next((loader.batch_size for loader in loaders if loader.batch_size), None)
    batch_size = f"; batch size {batch}, {batch * factor} would fit" if batch else ""
    yield Diagnosis(
        title=f"memory is {units.share(used)} full: the batch could be {factor} times as large",
        evidence=f"{device_memory.evidence(profile)}{batch_size}",
        cure=Cure(
            "Raise the batch size, as long as the model still learns as well.",
            savings.lines(
                profile.seen.loader_where if profile.seen is not None else None,
                f"DataLoader(..., batch_size={batch or 'n'})",
                f"DataLoader(..., batch_size={batch * factor if batch else f'{factor} * n'})",
            ),
        ),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _factor(profile: Profile) -> int:
    """The power of two by which the batch can be multiplied."""
    watched = profile.seen
    if watched is None or not watched.memory_peak_bytes or not watched.memory_total_bytes:
        return 1
    models = profile.job.models if profile.job is not None else ()
    fixed = min(
        sum(model.parameters for model in models) * 4 * FIXED_COPIES,
        watched.memory_peak_bytes * 0.9,
    )
    room = (FILLED * watched.memory_total_bytes - fixed) / (watched.memory_peak_bytes - fixed)
    factor = 1
    while factor * 2 <= min(room, LARGEST):
        factor *= 2
    return factor
