"""A GPU is so hot that it lowers its clocks, or close to it.

## What it sees

The driver names heat as a reason for lower clocks: sw_thermal_slowdown or hw_thermal_slowdown. If
it names it for no GPU: a temperature at most 5 degrees below the slowdown temperature.

## Why it matters

The clocks fall by a third or more until the temperature does: every step takes longer, and with
several GPUs all wait for the hottest. Where it is close, a little more load, dust or summer is
enough, and memory ages faster in the heat.

## Cure

Check for dust, blocked or failed fans, a rack or room that is too warm, and cards without a gap
between them. Until that is fixed, a power limit 10 to 20 % lower costs little speed, and holds a
steadier one than throttling.

## References

- https://docs.nvidia.com/deploy/nvml-api/
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

CHECK = Check(code="HW004", severity=Severity.WARNING, since="0.2.0")
CLOSE_C = 5


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs that heat slows, or if there is none, for all that it will soon."""
    gpus = machine.gpus or ()
    slowed = [gpu for gpu in gpus if causes.reasons(gpu, throttles.HEAT)]
    near = [gpu for gpu in gpus if _near(gpu)]
    if slowed:
        yield Diagnosis(
            title=f"{devices.subject(slowed)}: slowed down by heat now",
            evidence=devices.facts(slowed, _slowed_facts),
            cure=Cure(causes.COOL, _commands(slowed)),
        )
    elif near:
        yield Diagnosis(
            title=f"{devices.subject(near)}: nearly too hot",
            evidence=devices.facts(near, _near_facts),
            cure=Cure(
                "Clean and check the fans and the air flow; or lower the power limit a little.",
                devices.settings(machine, _lower_limits(near)),
            ),
        )


def _near(gpu: Gpu) -> bool:
    now, most = gpu.temperature_c, gpu.temperature_slowdown_c
    return now is not None and most is not None and now >= most - CLOSE_C


def _slowed_facts(gpu: Gpu) -> str:
    parts = list(causes.reasons(gpu, throttles.HEAT))
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c} C")
    if gpu.temperature_slowdown_c is not None:
        parts.append(f"slowdown at {gpu.temperature_slowdown_c} C")
    return ", ".join((*parts, *causes.clock(gpu)))


def _near_facts(gpu: Gpu) -> str:
    parts = [f"{gpu.temperature_c} C, slowdown at {gpu.temperature_slowdown_c} C"]
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:g} W")
    if gpu.utilization is not None:
        parts.append(f"load {units.share(gpu.utilization)}")
    return ", ".join(parts)


def _commands(slowed: list[Gpu]) -> tuple[str, ...]:
    nvidia = [gpu for gpu in slowed if gpu.vendor == "nvidia"]
    return (causes.watch_heat(nvidia),) if nvidia else ("rocm-smi --showtemp --showfan",)


def _lower_limits(near: list[Gpu]) -> list[str]:
    """Lines that lower the power limits; laptops do not accept another one."""
    return [
        devices.smi([gpu], f"-pl {gpu.power_limit_w * 0.85:.0f}")
        for gpu in near
        if gpu.power_limit_w is not None and gpu.vendor == "nvidia" and not devices.laptop(gpu)
    ]
