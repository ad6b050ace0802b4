"""The driver's facts about the GPUs' clocks while the window was recorded."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.diagnosing.job import device_time
from flatout.diagnosing.job.device_time import Saving
from flatout.nouns import throttles, units
from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.profile import DeviceSample, Profile


def share(sample: DeviceSample) -> float | None:
    """The clock as a share of its maximum, or None if unknown."""
    if not sample.clock_mhz or not sample.clock_max_mhz:
        return None
    return sample.clock_mhz / sample.clock_max_mhz


def throttled(sample: DeviceSample, *reasons: str) -> bool:
    """Whether the driver gave one of these reasons (`throttles`) for lower clocks."""
    return throttles.any_of(sample.throttled, reasons)


def saving(profile: Profile, slow: Sequence[DeviceSample]) -> Saving:
    """What full clocks would save on the slowest GPU, for which the others wait."""
    computing = profile.anatomy.step_ms - profile.anatomy.part(
        *WAITS, Kind.COPY, Kind.COMMUNICATION
    )
    reached = min((part for sample in slow if (part := share(sample)) is not None), default=1.0)
    saved = computing * (1 - min(reached, 1.0))
    return device_time.of_device(
        profile,
        saved,
        f"kernels take {units.milliseconds(computing)} at {units.share(reached)} of the highest "
        f"clock: {units.milliseconds(saved)} less at all of it",
    )


def subject(slow: Sequence[DeviceSample]) -> str:
    """Like "GPU 0 (NVIDIA A100)" or "GPUs 0, 3"."""
    if len(slow) > 1:
        return f"GPUs {', '.join(str(sample.index) for sample in slow)}"
    return f"GPU {slow[0].index}" + (f" ({slow[0].name})" if slow[0].name else "")


def evidence(slow: Sequence[DeviceSample]) -> str:
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
