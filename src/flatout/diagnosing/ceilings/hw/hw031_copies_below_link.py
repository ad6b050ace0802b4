"""Copies between host and GPU are far slower than the card's PCIe link.

## What it sees

Pinned copies give less than 65 % of the capacity of the card's link. Under load the link has fewer
lanes than the card, or stayed at a lower generation (every idle link is slow; that does not count),
or both have all they could and something else is the cause.

## Why it matters

Batches, offloaded tensors and, without NVLink, gradients go over these lanes. Each generation down
halves the bandwidth, as do half of the lanes.

## Cure

Lanes: use a slot wired with all of them (see the board's manual), use no riser cable, reseat the
card. Generation: set the slot to Auto or the newest one in the firmware, and replace a riser cable
that cannot carry it; some boards have no newer one.

Neither: keep the process on the GPU's own NUMA node; in a virtual machine the provider's IOMMU
settings decide; on desktops the memory's speed (one channel) can be the limit.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html
- https://docs.kernel.org/admin-guide/mm/numaperf.html
- https://pcisig.com/specifications
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.ceilings.hw.shortfalls import Shortfall
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW031", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU and cause; a note if nobody can change it from here."""
    for shortfall in shortfalls.pcie(benched, machine):
        gpu = shortfall.gpu
        few, old = None, None
        if gpu is not None:  # each under load and of the card
            few = _fewer(gpu.pcie_width, gpu.pcie_width_max)
            card = gpu.pcie_generation_card or gpu.pcie_generation_max
            old = _fewer(gpu.pcie_generation, card)
        if few:
            yield _few_lanes(machine, shortfall, *few)
        if old:
            yield _old_generation(shortfall, *old)
        if not few and not old and not shortfalls.other_programs(gpu):
            yield _below_link(machine, shortfall)


def _few_lanes(machine: Machine, shortfall: Shortfall, lanes: int, most: int) -> Diagnosis:
    virtual = machine.container.virtual_machine is not None
    return Diagnosis(
        title=f"{shortfall.label}: copies at {units.share(shortfall.share)}, "
        f"{lanes} of {most} PCIe lanes",
        evidence=f"{shortfall.figures}; x{lanes} of x{most} under load",
        cure=Cure(
            "In a virtual machine this is the provider's choice; ask for another machine."
            if virtual
            else "Reseat the card, in a slot wired with all lanes and without a riser cable.",
        ),
        severity=Severity.NOTE if virtual else Severity.WARNING,
    )


def _old_generation(shortfall: Shortfall, generation: int, card: int) -> Diagnosis:
    """Of the board: the link already runs at the highest that card and slot support."""
    gpu = shortfall.gpu
    most = gpu.pcie_generation_max if gpu is not None else None
    of_the_board = most is not None and generation >= most
    return Diagnosis(
        title=f"{shortfall.label}: copies at {units.share(shortfall.share)}, "
        f"PCIe generation {generation} of {card}",
        evidence=f"{shortfall.figures}; generation {generation} under load, the card can do {card}",
        cure=Cure(
            "The board has no newer generation: copy less, and overlap copies with work."
            if of_the_board
            else "Set the slot to Auto in the firmware's set-up; try without a riser cable.",
        ),
        severity=Severity.NOTE if of_the_board else Severity.WARNING,
    )


def _below_link(machine: Machine, shortfall: Shortfall) -> Diagnosis:
    virtual = machine.container.virtual_machine is not None
    gpu, nodes = shortfall.gpu, machine.kernel.numa_nodes
    lines: tuple[str, ...] = ()
    if gpu is not None and gpu.numa_node is not None and nodes is not None and nodes > 1:
        bound = f"--cpunodebind={gpu.numa_node} --membind={gpu.numa_node}"
        lines = (f"numactl {bound} flatout bench --quick",)
    return Diagnosis(
        title=f"{shortfall.label}: pinned copies at {units.share(shortfall.share)} of its PCIe "
        "link",
        evidence=f"{shortfall.figures}{_around(machine, gpu)}",
        cure=Cure(
            "Keep the process on the GPU's own NUMA node, and measure again.",
            lines,
        ),
        severity=Severity.NOTE if virtual else Severity.WARNING,
    )


def _fewer(now: int | None, most: int | None) -> tuple[int, int] | None:
    return (now, most) if now is not None and most is not None and now < most else None


def _around(machine: Machine, gpu: Gpu | None) -> str:
    parts = []
    if machine.kernel.numa_nodes is not None and machine.kernel.numa_nodes > 1:
        node = f", the GPU is at node {gpu.numa_node}" if gpu and gpu.numa_node is not None else ""
        parts.append(f"{machine.kernel.numa_nodes} NUMA nodes{node}")
    if machine.kernel.iommu:
        parts.append("an IOMMU translates")
    if machine.container.virtual_machine is not None:
        parts.append(f"virtual machine ({machine.container.virtual_machine})")
    return "".join(f"; {part}" for part in parts)
