"""Copies between host and GPU are far slower than the PCIe link, which has all its lanes.

## What it sees

Pinned copies give less than 65 % of the capacity of the card's link; lanes and generation are not
the cause.

## Why it matters

Batches take longer to reach the GPU, and offloaded tensors take longer in both directions.

## Cure

Keep the process on the GPU's own NUMA node; in a virtual machine the provider's IOMMU settings
decide; on desktops the memory's speed (one channel) can be the limit.

## References

- https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html
- https://docs.kernel.org/admin-guide/mm/numaperf.html
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

CHECK = Check(code="HW033", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU; in a virtual machine a note."""
    for shortfall in shortfalls.pcie(benched, machine):
        gpu = shortfall.gpu
        pairs = (shortfalls.lanes(gpu), shortfalls.generations(gpu))
        link = any(pair is not None and pair[0] < pair[1] for pair in pairs)
        if link or shortfalls.other_programs(gpu):
            continue
        name = devices.label(gpu) if gpu is not None else shortfall.name[: devices.TITLE]
        virtual = machine.container.virtual_machine is not None
        yield Diagnosis(
            title=f"{name}: pinned copies at {units.share(shortfall.share)} of its PCIe link",
            evidence=f"{shortfall.figures}{_around(machine, gpu)}",
            cure=Cure(
                "Keep the process on the GPU's own NUMA node, and measure again.",
                _lines(machine, gpu),
            ),
            severity=Severity.NOTE if virtual else Severity.WARNING,
        )


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


def _lines(machine: Machine, gpu: Gpu | None) -> tuple[str, ...]:
    nodes = machine.kernel.numa_nodes
    if gpu is None or gpu.numa_node is None or nodes is None or nodes < 2:
        return ()
    node = gpu.numa_node
    return (f"numactl --cpunodebind={node} --membind={node} flatout bench --quick",)
