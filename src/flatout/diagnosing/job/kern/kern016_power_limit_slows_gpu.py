"""The GPU lowers its clocks while the job runs, because its power limit is below the data sheet's.

## What it sees

The driver gave power as a reason for lower clocks while the steps were recorded, and the limit is
well below this model's data sheet; or the power supply's brake is active.

## Why it matters

At its own limit a busy GPU always lowers its clocks a little, which is no fault. A lower limit, set
by somebody or by a weak supply, costs speed as long as it stays.

## Cure

Raise the limit if the supply and the cooling allow it. If the brake is active, check cables,
connectors and the redundancy of the power supplies.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/nvidia-smi/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job.kern import clocks
from flatout.knowledge import gpus
from flatout.nouns import throttles
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import DeviceSample, Profile

CHECK = Check(code="KERN016", severity=Severity.WARNING, since="0.2.0", hides=("KERN017",))
LOW = 0.9
"""Share of the data sheet's power below which somebody set the limit."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all GPUs that their own power limit slows."""
    slowed = [sample for sample in profile.devices if _braked(sample) or _limited(sample)]
    if not slowed:
        return
    saving = clocks.saving(profile, slowed)
    sheets = {power for sample in slowed if (power := _sheet(sample)) is not None}
    yield Diagnosis(
        title=f"{clocks.subject(slowed)}: slowed down by its power limit",
        evidence=clocks.evidence(slowed)
        + "".join(f"; the data sheet says {power:.0f} W" for power in sorted(sheets)),
        cure=Cure(
            "Set the limit to the data sheet's, as administrator.",
            tuple(
                f"sudo nvidia-smi -i {sample.index} -pl {power:.0f}"
                for sample in slowed
                if (power := _sheet(sample)) is not None
            ),
        ),
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _braked(sample: DeviceSample) -> bool:
    return clocks.throttled(sample, *throttles.POWER_BRAKE)


def _limited(sample: DeviceSample) -> bool:
    sheet = _sheet(sample)
    return (
        clocks.throttled(sample, *throttles.POWER)
        and sheet is not None
        and sample.power_limit_w is not None
        and sample.power_limit_w < LOW * sheet
    )


def _sheet(sample: DeviceSample) -> float | None:
    model = gpus.find(sample.name, sample.memory_bytes) if sample.name else None
    return model.power_w if model is not None else None
