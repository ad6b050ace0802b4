"""A GPU has fewer PCIe lanes than it could use.

## What it sees

The PCIe link of a GPU is narrower than the card: x8 or x4 instead of x16. It is a note if nobody
can change it from here: a laptop, a virtual machine, several cards that share the lanes of a
consumer board at x8. GPUs that are connected to their processor chip to chip (GB10, GH200, GB200)
are left out: their PCIe figures are placeholders.

## Why it matters

Half of the lanes is half of the bandwidth between main memory and GPU: copies of batches,
offloading, and, without NVLink, the exchange between GPUs.

## Cure

Put the card into a slot wired with all lanes (the board's manual says which, and which M.2 slots
take lanes away), without a riser cable, and reseat it. In the cloud, ask for another machine.

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

CHECK = Check(code="HW001", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs whose link is narrow."""
    narrow = [gpu for gpu in machine.gpus or () if devices.on_pcie(gpu) and _lost(gpu)]
    if not narrow:
        return
    mild = all(_meant_so(gpu, machine) for gpu in narrow)
    first = narrow[0]
    yield Diagnosis(
        title=f"{devices.subject(narrow)}: {first.pcie_width} of {_most(first)} PCIe lanes",
        evidence=devices.facts(narrow, _facts),
        cure=Cure(_text(narrow, mild, machine), pcie.look(machine, narrow[0])),
        severity=Severity.NOTE if mild else Severity.WARNING,
    )


def _lost(gpu: Gpu) -> bool:
    width, most = gpu.pcie_width, _most(gpu)
    return width is not None and most is not None and 0 < width < most


def _most(gpu: Gpu) -> int | None:
    """Lanes of the card; the driver may report the minimum of card and slot."""
    sheet = devices.model(gpu)
    widths = (gpu.pcie_width_max, sheet.pcie_width if sheet else None)
    return max((lanes for lanes in widths if lanes is not None), default=None)


def _meant_so(gpu: Gpu, machine: Machine) -> bool:
    """Whether it is a laptop's or a provider's choice, or two cards on a consumer board."""
    if devices.laptop(gpu) or machine.container.virtual_machine is not None:
        return True
    shares = len(machine.gpus_of(gpu.vendor)) > 1 and not devices.data_center(gpu)
    return shares and (gpu.pcie_width or 0) >= 8


def _facts(gpu: Gpu) -> str:
    width, most = gpu.pcie_width, _most(gpu)
    now = rates.gb_per_s(gpu.pcie_generation_max, width)
    could = rates.gb_per_s(gpu.pcie_generation_max, most)
    if now is None or could is None:
        return f"x{width} of x{most}"
    speeds = f"{now:.1f} of {could:.1f} GB/s"
    return f"x{width} of x{most}, generation {gpu.pcie_generation_max}: {speeds}"


def _text(narrow: list[Gpu], mild: bool, machine: Machine) -> str:
    if mild and devices.laptop(narrow[0]):
        return "The laptop is wired this way: all you can do is copy less and earlier."
    if machine.container.virtual_machine is not None:
        return "This is the provider's choice; another type of machine may have all lanes."
    if mild:
        return (
            "Consumer boards share 16 lanes between two cards: a board with more lanes is needed."
        )
    return (
        "Shut down, reseat the card or move it to a slot wired with all lanes; use no riser cable."
    )
