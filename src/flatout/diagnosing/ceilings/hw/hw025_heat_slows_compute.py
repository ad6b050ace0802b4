"""Heat keeps a GPU far below its data sheet.

## What it sees

The best matrix product gives less than about half of the data sheet's peak, and while it ran the
driver named heat (sw_thermal_slowdown, hw_thermal_slowdown) as the limit of the clocks.

## Why it matters

This was a load of seconds; training lasts for hours, and with several GPUs all wait for the hottest
one.

## Cure

Clean and check the fans, the air flow and the room; leave a gap between cards. Until then a lower
power limit holds a steadier speed than throttling.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import causes, devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import throttles, units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW025", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for shortfall in shortfalls.compute(benched, machine):
        gpu = shortfall.gpu
        if gpu is None or not causes.reasons(gpu, throttles.HEAT):
            continue
        yield Diagnosis(
            title=f"{devices.label(gpu)}: {units.share(shortfall.share)} of its peak, slowed by "
            "heat",
            evidence=f"{shortfall.figures}; {_facts(gpu)}",
            cure=Cure(
                causes.COOL,
                (causes.watch_heat([gpu]),) if gpu.vendor == "nvidia" else (),
            ),
        )


def _facts(gpu: Gpu) -> str:
    parts = list(causes.reasons(gpu, throttles.HEAT))
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c} C")
    return ", ".join((*parts, *causes.clock(gpu)))
