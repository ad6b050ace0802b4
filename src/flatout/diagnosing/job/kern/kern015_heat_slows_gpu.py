"""The GPU lowers its clocks while the job runs, because it is too hot.

## What it sees

The driver gave heat as a reason for lower clocks while the steps were recorded.

## Why it matters

Kernels take longer in proportion to the fall of the clock, and with several GPUs all of them wait
for the hottest.

## Cure

Clean fans and air vents, give the cards room, cool the rack. Until then a lower power limit holds a
steadier speed than throttling. `flatout doctor` shows the driver's present reasons (HW004).

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job.kern import clocks
from flatout.nouns import throttles
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="KERN015", severity=Severity.WARNING, since="0.2.0", hides=("KERN017",))


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all GPUs that heat slows."""
    hot = [sample for sample in profile.devices if clocks.throttled(sample, *throttles.HEAT)]
    if not hot:
        return
    saving = clocks.saving(profile, hot)
    yield Diagnosis(
        title=f"{clocks.subject(hot)}: slowed down by heat",
        evidence=clocks.evidence(hot),
        cure=Cure(
            "Clean and check fans and air flow, then watch the clocks while the job runs.",
            ("nvidia-smi --query-gpu=index,temperature.gpu,fan.speed,clocks.sm --format=csv -l 2",),
        ),
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
