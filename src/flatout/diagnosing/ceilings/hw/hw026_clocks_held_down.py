"""A setting or the power supply holds a GPU's clocks down.

## What it sees

The best matrix product gives less than about half of the data sheet's peak, and while it ran the
driver named fixed clocks (applications_clocks_setting) or the power supply's brake (hw_slowdown,
hw_power_brake_slowdown) as the reason.

## Why it matters

Clocks that somebody fixed for an earlier measurement, or a weak supply, cost every step of every
training the same share.

## Evidence

The figure beside the data sheet, the reasons, and the clock under load and at most.

## Cure

Give the clocks free; with a brake, look at the power supplies and cables.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW026", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for found in shortfalls.compute(benched, machine):
        gpu = found.gpu
        causes = shortfalls.reasons(gpu, (*shortfalls.SETTINGS, *shortfalls.BRAKE))
        if gpu is None or not causes or shortfalls.reasons(gpu, shortfalls.HEAT):
            continue  # hw_slowdown is told beside heat as well
        yield Diagnosis(
            title=f"{devices.label(gpu)}: {units.share(found.share)} of its peak, clocks held down",
            evidence=f"{found.told}; {', '.join(causes)}{_clock(gpu)}",
            cure=Cure(_text(causes), devices.settings(machine, _lines(gpu, causes))),
        )


def _clock(gpu: Gpu) -> str:
    if gpu.clock_sm_mhz is None or gpu.clock_sm_max_mhz is None:
        return ""
    return f", {gpu.clock_sm_mhz} of {gpu.clock_sm_max_mhz} MHz"


def _text(causes: tuple[str, ...]) -> str:
    if set(causes) & set(shortfalls.BRAKE):
        return "Check the power supplies, the card's power cables and the server's own power cap."
    return "Somebody fixed the clocks: set them free, unless they are meant."


def _lines(gpu: Gpu, causes: tuple[str, ...]) -> list[str]:
    if gpu.vendor != "nvidia":
        return []
    if set(causes) & set(shortfalls.BRAKE):
        return [devices.smi([gpu], "-q -d PERFORMANCE,POWER,CLOCK")]
    return [devices.smi([gpu], "-rgc"), devices.smi([gpu], "-rac")]
