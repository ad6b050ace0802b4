"""A GPU is too hot now and lowers its clocks.

## What it sees

The driver names heat as a reason for lower clocks: sw_thermal_slowdown or hw_thermal_slowdown.

## Why it matters

The clocks fall by a third or more until the temperature does: every step takes longer, and with
several GPUs all wait for the hottest.

## Cure

Check for dust, blocked or failed fans, a rack or room that is too warm, and cards without a gap
between them. Until that is fixed, a lower power limit holds a steadier speed than throttling.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import causes, devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import throttles
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW004", severity=Severity.WARNING, since="0.2.0", hides=("HW019",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs that heat slows."""
    hot = [gpu for gpu in machine.gpus or () if causes.reasons(gpu, throttles.HEAT)]
    if not hot:
        return
    yield Diagnosis(
        title=f"{devices.subject(hot)}: slowed down by heat now",
        evidence=devices.facts(hot, _facts),
        cure=Cure(causes.COOL, _commands(hot)),
    )


def _facts(gpu: Gpu) -> str:
    parts = list(causes.reasons(gpu, throttles.HEAT))
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c} C")
    if gpu.temperature_slowdown_c is not None:
        parts.append(f"slowdown at {gpu.temperature_slowdown_c} C")
    return ", ".join((*parts, *causes.clock(gpu)))


def _commands(hot: list[Gpu]) -> tuple[str, ...]:
    nvidia = [gpu for gpu in hot if gpu.vendor == "nvidia"]
    return (causes.watch_heat(nvidia),) if nvidia else ("rocm-smi --showtemp --showfan",)
