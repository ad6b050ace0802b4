"""A professional card on Windows runs as a display card (WDDM) without a display.

## What it sees

Windows, a data-center or workstation card under the driver model WDDM, without a screen. GeForce
cards have no other model.

## Why it matters

Under WDDM Windows manages the card's memory and collects kernel launches into batches: launches
take longer, memory may be paged out silently, and kernels beyond two seconds are ended.

## Cure

Switch the card to MCDM or, on older drivers, TCC, as administrator, and restart. The card can then
no longer draw a screen; WSL needs WDDM or MCDM.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.nvidia.com/nsight-visual-studio-edition/reference/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW021", severity=Severity.NOTE, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all such cards."""
    cards = [
        gpu
        for gpu in machine.gpus_of("nvidia")
        if (gpu.driver_model or "").upper() == "WDDM"
        and gpu.display is False
        and (devices.data_center(gpu) or devices.workstation(gpu))
    ]
    if machine.system.name != "Windows" or not cards:
        return
    yield Diagnosis(
        title=f"{devices.subject(cards)}: runs as a display card (WDDM)",
        evidence=devices.facts(cards, lambda gpu: "driver model WDDM, no screen"),
        cure=Cure(
            "As administrator switch the card to TCC (or MCDM: -dm 2), then restart Windows.",
            (devices.smi(cards, "-dm 1"), "Restart-Computer"),
        ),
    )
