"""The power limit keeps a GPU far below its data sheet.

## What it sees

The best matrix product gives less than about half of the data sheet's peak, and while it ran the
driver named the power limit (sw_power_cap) as the limit of the clocks. With the limit at its
default it is a note: the card is built that way.

## Why it matters

A product of large matrices takes more power than anything else. Under a lowered limit the clocks
fall until it fits; training that is limited by computing is slower by as much. Even at its default
limit a small card (L4: 72 W) reaches at most half of its peak.

## Cure

Restore the default limit, unless the lower one is intended. If it is the default already, there is
nothing to set.

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

CHECK = Check(code="HW024", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for shortfall in shortfalls.compute(benched, machine):
        gpu = shortfall.gpu
        if gpu is None or not causes.reasons(gpu, throttles.POWER):
            continue
        lowered = causes.lowered_limit(gpu)
        yield Diagnosis(
            title=f"{devices.label(gpu)}: {units.share(shortfall.share)} of its peak under the "
            f"power limit",
            evidence=f"{shortfall.figures}; {_facts(gpu)}",
            cure=Cure(
                "Restore the default limit, unless the lower one is intended."
                if lowered
                else "This is the card's default limit: it cannot sustain its peak.",
                devices.settings(machine, causes.default_limits([gpu])) if lowered else (),
            ),
            severity=Severity.WARNING if lowered else Severity.NOTE,
        )


def _facts(gpu: Gpu) -> str:
    parts = [
        f"limit {gpu.power_limit_w:g} W" if gpu.power_limit_w is not None else "",
        f"default {gpu.power_limit_default_w:g} W" if gpu.power_limit_default_w else "",
        f"{gpu.power_w:.0f} W and" if gpu.power_w is not None else "",
        f"{gpu.clock_sm_mhz} MHz under load" if gpu.clock_sm_mhz is not None else "",
    ]
    return ", ".join(part for part in parts if part).replace("and, ", "and ")
