"""The GPU is busy and its clock stays far below its maximum, without heat or power as a reason.

## What it sees

A GPU that was busy while the steps were recorded, at less than three quarters of its highest
clock, and the driver gave neither heat nor power as the reason.

## Why it matters

Locked clocks (`nvidia-smi -lgc`), application clocks or a low-power mode stay until they are reset:
every kernel takes longer in that proportion.

## Cure

Reset locked and application clocks. `flatout doctor` shows the driver's settings (HW family).

## References

- https://docs.nvidia.com/deploy/nvidia-smi/
- https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job.kern import clocks
from flatout.nouns import throttles
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import DeviceSample, Profile

CHECK = Check(code="KERN017", severity=Severity.WARNING, since="0.2.0")
LOW = 0.75
BUSY = 0.8
"""Utilisation below which a GPU may lower its clocks because there is little to do."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all such GPUs."""
    slow = [sample for sample in profile.devices if _slow(sample)]
    if not slow:
        return
    saving = clocks.saving(profile, slow)
    if not saving.worth:
        return
    yield Diagnosis(
        title=f"{clocks.subject(slow)}: busy at a low clock",
        evidence=clocks.evidence(slow),
        cure=Cure(
            "Reset locked and application clocks, as administrator.",
            tuple(
                line
                for sample in slow
                for line in (
                    f"sudo nvidia-smi -i {sample.index} -rgc",
                    f"sudo nvidia-smi -i {sample.index} -rac",
                )
            ),
        ),
        severity=saving.severity,
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _slow(sample: DeviceSample) -> bool:
    share = clocks.share(sample)
    return (
        share is not None
        and share < LOW
        and sample.utilisation is not None
        and sample.utilisation >= BUSY
        and not clocks.throttled(sample, *throttles.HEAT, *throttles.POWER, *throttles.POWER_BRAKE)
    )
