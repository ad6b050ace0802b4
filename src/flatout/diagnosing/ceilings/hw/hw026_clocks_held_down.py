"""A setting or the power supply holds a GPU's clocks down.

## What it sees

The best matrix product gives less than about half of the data sheet's peak, and while it ran the
driver named fixed clocks (applications_clocks_setting) or the power supply's brake (hw_slowdown,
hw_power_brake_slowdown) as the reason.

## Why it matters

Clocks that were locked for an earlier measurement, or a weak power supply, slow every step of every
training run by the same share.

## Cure

Unlock the clocks; with a power brake, check the power supplies and cables.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/nvidia-smi/index.html
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

CHECK = Check(code="HW026", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for shortfall in shortfalls.compute(benched, machine):
        gpu = shortfall.gpu
        reasons = causes.reasons(gpu, (*throttles.SETTINGS, *throttles.BRAKE))
        if gpu is None or not reasons or causes.reasons(gpu, throttles.HEAT):
            continue  # hw_slowdown is also reported with heat
        yield Diagnosis(
            title=f"{devices.label(gpu)}: {units.share(shortfall.share)} of its peak, clocks held "
            "down",
            evidence=f"{shortfall.figures}; {', '.join((*reasons, *causes.clock(gpu)))}",
            cure=Cure(_text(reasons), devices.settings(machine, _lines(gpu, reasons))),
        )


def _text(reasons: tuple[str, ...]) -> str:
    if set(reasons) & set(throttles.BRAKE):
        return causes.SUPPLY
    return "The clocks are locked: unlock them, unless this is intended."


def _lines(gpu: Gpu, reasons: tuple[str, ...]) -> list[str]:
    if gpu.vendor != "nvidia":
        return []
    if set(reasons) & set(throttles.BRAKE):
        return [causes.look_at_power([gpu])]
    return causes.free_clocks([gpu])
