"""A GPU stands in a slot of an older PCIe generation than its own.

## What it sees

The most that card and slot together can do is a lower generation than the card alone can do. That
an idle GPU lowers its link to save power is not counted; neither are GPUs that are joined to their
processor chip to chip.

## Why it matters

Each generation down halves the bandwidth between main memory and GPU.

## Cure

Use a slot of the newer generation, set it to Auto in the firmware, and take out a riser cable that
forces it down. An older board or processor cannot do more.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://pcisig.com/specifications
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.hw import pcie
from flatout.knowledge import pcie as rates
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW002", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs in older slots."""
    slow = [gpu for gpu in machine.gpus or () if devices.on_pcie(gpu) and _limited_by_slot(gpu)]
    if not slow:
        return
    first = slow[0]
    yield Diagnosis(
        title=f"{devices.subject(slow)}: PCIe {first.pcie_generation_max} "
        f"where the card can do {_card(first)}",
        evidence=devices.facts(slow, _facts),
        cure=Cure(
            "In the firmware set the slot to Auto or to the card's generation; without a riser "
            "cable. An older board or processor cannot do more.",
            pcie.look(machine, slow[0]),
        ),
    )


def _limited_by_slot(gpu: Gpu) -> bool:
    together, card = gpu.pcie_generation_max, _card(gpu)
    return together is not None and card is not None and together < card


def _card(gpu: Gpu) -> int | None:
    """The generation the card supports, from the driver or else its data sheet."""
    if gpu.pcie_generation_card is not None:
        return gpu.pcie_generation_card
    sheet = devices.model(gpu)
    return sheet.pcie_generation if sheet else None


def _facts(gpu: Gpu) -> str:
    text = f"generation {gpu.pcie_generation_max} at most, the card {_card(gpu)}"
    now = rates.gb_per_s(gpu.pcie_generation_max, gpu.pcie_width)
    could = rates.gb_per_s(_card(gpu), gpu.pcie_width)
    if now is None or could is None:
        return text
    return f"{text}: {now:.1f} of {could:.1f} GB/s"
