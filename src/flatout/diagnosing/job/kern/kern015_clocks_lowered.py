"""The GPU's clocks are lowered while the job runs: by heat, by a power limit, or by a setting.

## What it sees

What the driver said while the steps were recorded:

- heat as a reason for lower clocks
- power as a reason, and a limit well below this model's data sheet; or the power supply's brake
- neither, and yet a busy GPU at less than three quarters of its highest clock

## Why it matters

Kernels take longer in proportion to the fall of the clock, and with several GPUs all of them wait
for the slowest. At its own power limit a busy GPU always lowers its clocks a little, which is no
fault. A lower limit, locked clocks (`nvidia-smi -lgc`), application clocks or a low-power mode cost
speed until they are reset.

## Cure

- Heat: clean fans and air vents, give the cards room, cool the rack. Until then a lower power limit
  holds a steadier speed than throttling.
- Power: raise the limit if the supply and the cooling allow it. If the brake is active, check
  cables, connectors and the redundancy of the power supplies.
- Neither: reset locked and application clocks.

`flatout doctor` shows the driver's present reasons and settings (HW family).

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/nvidia-smi/
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time
from flatout.diagnosing.job.device_time import Saving
from flatout.knowledge import gpus
from flatout.nouns import throttles, units
from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import DeviceSample, Profile

CHECK = Check(code="KERN015", severity=Severity.WARNING, since="0.2.0")
LOW_LIMIT = 0.9
"""Share of the data sheet's power below which somebody set the limit."""
LOW_CLOCK = 0.75
BUSY = 0.8
"""Utilisation below which a GPU may lower its clocks because there is little to do."""
WATCH = "nvidia-smi --query-gpu=index,temperature.gpu,fan.speed,clocks.sm --format=csv -l 2"


@dataclass(frozen=True)
class ClockCause:
    """One reason for low clocks."""

    holds: Callable[[DeviceSample], bool]
    title: str
    cure: str
    commands: Callable[[DeviceSample], tuple[str, ...]]


def _hot(sample: DeviceSample) -> bool:
    return throttles.any_of(sample.throttled, throttles.HEAT)


def _limited(sample: DeviceSample) -> bool:
    if throttles.any_of(sample.throttled, throttles.POWER_BRAKE):
        return True
    sheet, limit = _sheet(sample), sample.power_limit_w
    is_low = sheet is not None and limit is not None and limit < LOW_LIMIT * sheet
    return is_low and throttles.any_of(sample.throttled, throttles.POWER)


def _held(sample: DeviceSample) -> bool:
    share, told = _share(sample), (*throttles.HEAT, *throttles.POWER, *throttles.POWER_BRAKE)
    is_busy = sample.utilisation is not None and sample.utilisation >= BUSY
    is_low = share is not None and share < LOW_CLOCK
    return is_busy and is_low and not throttles.any_of(sample.throttled, told)


def _to_sheet(sample: DeviceSample) -> tuple[str, ...]:
    power = _sheet(sample)
    return () if power is None else (f"sudo nvidia-smi -i {sample.index} -pl {power:.0f}",)


HEAT = ClockCause(
    _hot,
    "slowed down by heat",
    "Clean and check fans and air flow, then watch the clocks while the job runs.",
    lambda _: (WATCH,),
)
POWER = ClockCause(
    _limited,
    "slowed down by its power limit",
    "Set the limit to the data sheet's, as administrator.",
    _to_sheet,
)
HELD = ClockCause(
    _held,
    "busy at a low clock",
    "Reset locked and application clocks, as administrator.",
    lambda sample: tuple(f"sudo nvidia-smi -i {sample.index} {how}" for how in ("-rgc", "-rac")),
)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all GPUs of each cause; the last one only where neither of the others is."""
    known = [*_caused(profile, HEAT), *_caused(profile, POWER)]
    yield from known or _caused(profile, HELD)


def _caused(profile: Profile, cause: ClockCause) -> Iterator[Diagnosis]:
    slow = [sample for sample in profile.devices if cause.holds(sample)]
    if not slow:
        return
    saving = _saving(profile, slow)
    if cause is HELD and not saving.worth:
        return
    commands = (line for sample in slow for line in cause.commands(sample))
    yield Diagnosis(
        title=f"{_subject(slow)}: {cause.title}",
        evidence=_evidence(slow) + (_sheets(slow) if cause is POWER else ""),
        cure=Cure(cause.cure, tuple(dict.fromkeys(commands))),
        severity=saving.severity if cause is HELD else None,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _sheet(sample: DeviceSample) -> float | None:
    model = gpus.find(sample.name, sample.memory_bytes) if sample.name else None
    return model.power_w if model is not None else None


def _sheets(slow: Sequence[DeviceSample]) -> str:
    sheets = {power for sample in slow if (power := _sheet(sample)) is not None}
    return "".join(f"; the data sheet says {power:.0f} W" for power in sorted(sheets))


def _share(sample: DeviceSample) -> float | None:
    """The clock as a share of its maximum, or None if unknown."""
    if not sample.clock_mhz or not sample.clock_max_mhz:
        return None
    return sample.clock_mhz / sample.clock_max_mhz


def _saving(profile: Profile, slow: Sequence[DeviceSample]) -> Saving:
    """What full clocks would save on the slowest GPU, for which the others wait."""
    computing = profile.anatomy.step_ms - profile.anatomy.part(
        *WAITS, Kind.COPY, Kind.COMMUNICATION
    )
    reached = min((part for sample in slow if (part := _share(sample)) is not None), default=1.0)
    saved = computing * (1 - min(reached, 1.0))
    return device_time.of_device(
        profile,
        saved,
        f"kernels take {units.milliseconds(computing)} at {units.share(reached)} of the highest "
        f"clock: {units.milliseconds(saved)} less at all of it",
    )


def _subject(slow: Sequence[DeviceSample]) -> str:
    """Like "GPU 0 (NVIDIA A100)" or "GPUs 0, 3"."""
    if len(slow) > 1:
        return f"GPUs {', '.join(str(sample.index) for sample in slow)}"
    return f"GPU {slow[0].index}" + (f" ({slow[0].name})" if slow[0].name else "")


def _evidence(slow: Sequence[DeviceSample]) -> str:
    """Reasons, temperature, power and clock of each, where known."""
    return "; ".join(_facts(sample) for sample in slow)


def _facts(sample: DeviceSample) -> str:
    parts = [*sample.throttled]
    if sample.temperature_c is not None:
        parts.append(f"{sample.temperature_c:.0f} C")
    if sample.power_w is not None and sample.power_limit_w is not None:
        parts.append(f"{sample.power_w:.0f} of {sample.power_limit_w:.0f} W")
    if sample.clock_mhz is not None and sample.clock_max_mhz is not None:
        parts.append(f"{sample.clock_mhz:.0f} of {sample.clock_max_mhz:.0f} MHz")
    if sample.utilisation is not None:
        parts.append(f"{units.share(sample.utilisation)} busy")
    return f"GPU {sample.index}: {', '.join(parts)}"
