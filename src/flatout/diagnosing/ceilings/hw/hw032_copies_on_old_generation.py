"""Copies to a GPU are slow: its PCIe link runs at an older generation than the card's.

## What it sees

Pinned copies give less than 65 % of the capacity of the card's link, and under load the link stayed
at a lower generation than the card can do. (Every idle link is slow; that does not count.)

## Why it matters

Each generation down halves the bandwidth: batches, offloaded tensors and, without NVLink, gradients
take twice as long.

## Cure

Set the slot to Auto or the newest generation in the firmware; replace a riser cable that cannot
carry it. Some boards have no newer generation.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://pcisig.com/specifications
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

CHECK = Check(code="HW032", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU; a note if the board supports no newer generation."""
    for shortfall in shortfalls.pcie(benched, machine):
        gpu = shortfall.gpu
        generations = shortfalls.generations(gpu)
        if gpu is None or generations is None or generations[0] >= generations[1]:
            continue
        board = _of_the_board(gpu)
        yield Diagnosis(
            title=f"{devices.label(gpu)}: copies at {units.share(shortfall.share)}, "
            f"PCIe generation {generations[0]} of {generations[1]}",
            evidence=f"{shortfall.figures}; generation {generations[0]} under load, the card can "
            f"do {generations[1]}",
            cure=Cure(
                "The board has no newer generation: copy less, and overlap copies with work."
                if board
                else "Set the slot to Auto in the firmware's set-up; try without a riser cable.",
            ),
            severity=Severity.NOTE if board else Severity.WARNING,
        )


def _of_the_board(gpu: Gpu) -> bool:
    """Whether the link already runs at the highest generation that card and slot support."""
    most = gpu.pcie_generation_max
    return most is not None and gpu.pcie_generation is not None and gpu.pcie_generation >= most
