"""Launching a kernel takes this host several times as long as usual.

## What it sees

Fewer than 60,000 tiny kernels a second: more than 16 microseconds for each, where 4 to 8 are usual.

## Why it matters

A model of many small kernels waits for the host between them: the device idles, however fast it is.

## Cure

Set the governor to `performance`, give the process its own core, and turn off profilers and debug
variables. In the program, use CUDA graphs or torch.compile, which launch less.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html
- https://docs.kernel.org/admin-guide/pm/cpufreq.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW039", severity=Severity.NOTE, since="0.2.0")
SLOW_PER_S = 60_000
SLOW_GOVERNORS = ("powersave", "conservative", "ondemand")
OWN_GOVERNOR = ("intel_pstate", "amd-pstate-epp")
"""Under these `powersave` is the ordinary governor."""


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding: the host is the same for all devices."""
    rates = [
        ceiling.value
        for ceiling in benched.ceilings
        if ceiling.id == "launch-rate"
        and ceiling.device.startswith("cuda")
        and ceiling.value is not None
    ]
    if not rates or not 0 < max(rates) < SLOW_PER_S:
        return
    cpu = machine.cpu
    slow = cpu.governor in SLOW_GOVERNORS and cpu.scaling_driver not in OWN_GOVERNOR
    facts = "".join(f", {fact}" for fact in (cpu.name, cpu.governor) if fact)
    yield Diagnosis(
        title=f"{max(rates):,.0f} kernel launches a second: {1e6 / max(rates):,.3g} us for each",
        evidence=f"{max(rates):,.0f} launches/s; 120,000 to 250,000 are usual{facts}",
        cure=Cure(
            "Set the governor to performance."
            if slow
            else "Give the process a core of its own; use CUDA graphs or torch.compile.",
            devices.settings(machine, ["cpupower frequency-set -g performance"]) if slow else (),
        ),
    )
