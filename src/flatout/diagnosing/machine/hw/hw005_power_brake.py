"""The power supply makes a GPU halve its clocks.

## What it sees

The driver names hw_power_brake_slowdown, or hw_slowdown without heat, as a reason for lower clocks.

## Why it matters

The server's power supply triggers an emergency brake: clocks fall to a half or less. Training
continues at half its speed, and nothing else reports it.

## Cure

The GPU is not the cause: check the power supplies, their cables (a separate one for each plug) and
the server's power cap in its management controller.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import causes, devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_metal
from flatout.installing import system_packages, target
from flatout.nouns import throttles
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW005", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs that the power supply slows."""
    braked = [gpu for gpu in machine.gpus or () if _braked(gpu)]
    if not braked:
        return
    yield Diagnosis(
        title=f"{devices.subject(braked)}: slowed down by the power supply",
        evidence=devices.facts(braked, _facts),
        cure=Cure(causes.SUPPLY, _commands(machine, braked)),
    )


def _braked(gpu: Gpu) -> bool:
    """Whether the driver names a power brake, or reports a slowdown that heat does not explain."""
    reasons = causes.reasons(gpu, throttles.BRAKE)
    return "hw_power_brake_slowdown" in reasons or bool(
        reasons and not causes.reasons(gpu, throttles.HEAT)
    )


def _facts(gpu: Gpu) -> str:
    parts = [*causes.reasons(gpu, throttles.BRAKE), *causes.clock(gpu)]
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:g} W")
    return ", ".join(parts)


def _commands(machine: Machine, braked: list[Gpu]) -> tuple[str, ...]:
    look = causes.look_at_power(braked)
    if not (on_metal(machine) and devices.data_center(braked[0])):
        return (look,)
    place = target.of(machine)
    return (look, system_packages.sudo(place, "ipmitool sdr type 'Power Supply'"))
