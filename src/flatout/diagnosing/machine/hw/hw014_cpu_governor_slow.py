"""The processor's governor keeps the clocks low.

## What it sees

The governor is powersave or conservative under a driver that takes it literally (acpi-cpufreq and
the like). Under intel_pstate and amd-pstate-epp powersave is the ordinary, fast one.

## Why it matters

The cores stay at their lowest clock, or climb slowly: Python, kernel launches and loader workers
all run at half the speed or less, and the GPU waits.

## Cure

Set the governor to performance (or schedutil).

## References

- https://docs.kernel.org/admin-guide/pm/cpufreq.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_host
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW014", severity=Severity.WARNING, since="0.2.0")
SLOW = ("powersave", "conservative")
OWN_MIND = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose powersave is fast: the processor chooses its clocks itself."""
FILES = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the machine."""
    governor, driver = machine.cpu.governor, machine.cpu.scaling_driver
    if governor not in SLOW or driver is None or driver in OWN_MIND:
        return
    place = target.of(machine)
    line = f"echo performance | {system_packages.sudo(place, f'tee {FILES}')}"
    yield Diagnosis(
        title=f"the processor's governor is {governor}: its clocks stay low",
        evidence=f"governor {governor} under {driver}; {machine.cpu.name or 'processor not named'}",
        cure=Cure(
            "Set the governor to performance; it holds until the next restart.",
            on_host(place, (line,)),
        ),
    )
