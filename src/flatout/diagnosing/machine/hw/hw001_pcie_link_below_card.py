"""A GPU has fewer PCIe lanes, or an older generation, than it could use.

## What it sees

The PCIe link of a GPU is narrower than the card: x8 or x4 instead of x16. It is a note if nobody
can change it from here: a laptop, a virtual machine, several cards that share the lanes of a
consumer board at x8. Or the most that card and slot together can do is a lower generation than the
card alone can do; that an idle GPU lowers its link to save power is not counted. GPUs that are
connected to their processor chip to chip (GB10, GH200, GB200) are left out: their PCIe figures are
placeholders.

## Why it matters

Half of the lanes, or one generation down, is half of the bandwidth between main memory and GPU:
copies of batches, offloading, and, without NVLink, the exchange between GPUs.

## Cure

Put the card into a slot wired with all lanes (the board's manual says which, and which M.2 slots
take lanes away) and of its own generation, set to Auto in the firmware, without a riser cable, and
reseat it. An older board or processor cannot do more. In the cloud, ask for another machine.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://pcisig.com/specifications
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.knowledge import pcie
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW001", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs with fewer lanes, one for all of an older generation."""
    linked = [gpu for gpu in machine.gpus or () if devices.on_pcie(gpu)]
    narrow = [gpu for gpu in linked if _is_below(gpu.pcie_width, _lanes(gpu))]
    slow = [gpu for gpu in linked if _is_below(gpu.pcie_generation_max, _generation(gpu))]
    if narrow:
        first, mild = narrow[0], all(_meant_so(gpu, machine) for gpu in narrow)
        yield Diagnosis(
            title=f"{devices.subject(narrow)}: {first.pcie_width} of {_lanes(first)} PCIe lanes",
            evidence=devices.facts(narrow, _width_facts),
            cure=Cure(_lanes_cure(first, mild, machine), _look(machine, first)),
            severity=Severity.NOTE if mild else Severity.WARNING,
        )
    if slow:
        first = slow[0]
        yield Diagnosis(
            title=f"{devices.subject(slow)}: PCIe {first.pcie_generation_max} "
            f"where the card can do {_generation(first)}",
            evidence=devices.facts(slow, _generation_facts),
            cure=Cure(
                "In the firmware set the slot to Auto or to the card's generation; without a riser "
                "cable. An older board or processor cannot do more.",
                _look(machine, first),
            ),
        )


def _is_below(now: int | None, card: int | None) -> bool:
    return now is not None and card is not None and 0 < now < card


def _lanes(gpu: Gpu) -> int | None:
    """Lanes of the card; the driver may report the minimum of card and slot."""
    sheet = devices.model(gpu)
    widths = (gpu.pcie_width_max, sheet.pcie_width if sheet else None)
    return max((lanes for lanes in widths if lanes is not None), default=None)


def _generation(gpu: Gpu) -> int | None:
    """The generation the card supports, from the driver or else its data sheet."""
    if gpu.pcie_generation_card is not None:
        return gpu.pcie_generation_card
    sheet = devices.model(gpu)
    return sheet.pcie_generation if sheet else None


def _meant_so(gpu: Gpu, machine: Machine) -> bool:
    """Whether it is a laptop's or a provider's choice, or two cards on a consumer board."""
    if devices.laptop(gpu) or machine.container.virtual_machine is not None:
        return True
    shares = len(machine.gpus_of(gpu.vendor)) > 1 and not devices.data_center(gpu)
    return shares and (gpu.pcie_width or 0) >= 8


def _width_facts(gpu: Gpu) -> str:
    width, most, generation = gpu.pcie_width, _lanes(gpu), gpu.pcie_generation_max
    speeds = _speeds((generation, width), (generation, most))
    return f"x{width} of x{most}" + (f", generation {generation}{speeds}" if speeds else "")


def _generation_facts(gpu: Gpu) -> str:
    most, card, width = gpu.pcie_generation_max, _generation(gpu), gpu.pcie_width
    return f"generation {most} at most, the card {card}{_speeds((most, width), (card, width))}"


def _speeds(link: tuple[int | None, int | None], card: tuple[int | None, int | None]) -> str:
    """The rates of two (generation, lanes), or empty if unknown."""
    now, could = pcie.gb_per_s(*link), pcie.gb_per_s(*card)
    return "" if now is None or could is None else f": {now:.1f} of {could:.1f} GB/s"


def _lanes_cure(gpu: Gpu, mild: bool, machine: Machine) -> str:
    if mild and devices.laptop(gpu):
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


def _look(machine: Machine, gpu: Gpu) -> tuple[str, ...]:
    """The line that shows the links that card and slot support and the one in use."""
    if machine.system.name != "Linux" or gpu.pci_address is None:
        return ()
    lspci = system_packages.sudo(target.of(machine), f"lspci -vv -s {gpu.pci_address}")
    return (f"{lspci} | grep -E 'LnkCap:|LnkSta:'",)
