"""A GPU is close to the temperature at which it lowers its clocks.

## What it sees

The temperature is at most 5 degrees below the slowdown temperature, and the GPU does not throttle
yet.

## Why it matters

A little more load, dust or summer, and the clocks fall. Memory ages faster in the heat.

## Cure

Clean and check fans and air flow; a power limit 10 to 20 % lower costs little speed and much heat.

## References

- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import causes, devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import throttles, units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW019", severity=Severity.WARNING, since="0.2.0")
CLOSE_C = 5


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs that are nearly too hot."""
    hot = [gpu for gpu in machine.gpus or () if _near(gpu)]
    if not hot:
        return
    yield Diagnosis(
        title=f"{devices.subject(hot)}: nearly too hot",
        evidence=devices.facts(hot, _facts),
        cure=Cure(
            "Clean and check the fans and the air flow; or lower the power limit a little.",
            devices.settings(machine, _lines(hot)),
        ),
    )


def _near(gpu: Gpu) -> bool:
    now, most = gpu.temperature_c, gpu.temperature_slowdown_c
    if now is None or most is None or now < most - CLOSE_C:
        return False
    return not causes.reasons(gpu, throttles.HEAT)


def _facts(gpu: Gpu) -> str:
    parts = [f"{gpu.temperature_c} C, slowdown at {gpu.temperature_slowdown_c} C"]
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:g} W")
    if gpu.utilization is not None:
        parts.append(f"load {units.share(gpu.utilization)}")
    return ", ".join(parts)


def _lines(hot: list[Gpu]) -> list[str]:
    """The lines of the cure; laptops do not accept another power limit."""
    return [
        devices.smi([gpu], f"-pl {gpu.power_limit_w * 0.85:.0f}")
        for gpu in hot
        if gpu.power_limit_w is not None and gpu.vendor == "nvidia" and not devices.laptop(gpu)
    ]
