"""Copies to a GPU are slow: it has fewer PCIe lanes than it could use.

## What it sees

Pinned copies give less than 65 % of the capacity of the card's link, and the link has fewer lanes
than the card, even under load.

## Why it matters

Batches, offloaded tensors and, without NVLink, gradients go over these lanes.

## Cure

Use a slot wired with all lanes (see the board's manual), use no riser cable, reseat the card.

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
from flatout.nouns.machine import Machine

CHECK = Check(code="HW031", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for shortfall in shortfalls.pcie(benched, machine):
        gpu = shortfall.gpu
        lanes = shortfalls.lanes(gpu)
        if gpu is None or lanes is None or lanes[0] >= lanes[1]:
            continue
        virtual = machine.container.virtual_machine is not None
        yield Diagnosis(
            title=f"{devices.label(gpu)}: copies at {units.share(shortfall.share)}, "
            f"{lanes[0]} of {lanes[1]} PCIe lanes",
            evidence=f"{shortfall.figures}; x{lanes[0]} of x{lanes[1]} under load",
            cure=Cure(
                "In a virtual machine this is the provider's choice; ask for another machine."
                if virtual
                else "Reseat the card, in a slot wired with all lanes and without a riser cable.",
            ),
            severity=Severity.NOTE if virtual else Severity.WARNING,
        )
