"""NVLink connections of a GPU are down.

## What it sees

A GPU of which some NVLink connections are up and others down; or all down, while those of other
GPUs in the same machine are up. Cards that only lack the bridge are left out.

## Why it matters

Each connection carries its share of the bandwidth between GPUs, and NCCL goes at the pace of the
weakest GPU: one of 18 down slows all of them; all down means exchange over PCIe.

## Cure

Look at the state and the error counters, reset all GPUs (restart), reseat bridges. If the same
connections stay down: have the board checked.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW016", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs with connections down."""
    linked = [gpu for gpu in machine.gpus or () if gpu.nvlinks]
    down = [
        gpu
        for gpu in machine.gpus or ()
        if gpu.nvlinks_down and (gpu.nvlinks or (gpu.nvlinks == 0 and linked))
    ]
    if not down:
        return
    chosen = f" -i {down[0].index}" if down[0].index is not None else ""
    yield Diagnosis(
        title=f"{devices.subject(down)}: NVLink connections are down",
        evidence=devices.facts(down, lambda gpu: f"{gpu.nvlinks_down} down, {gpu.nvlinks} up"),
        cure=Cure(
            "Read the counters, then reset all GPUs while nothing runs; restart where that is "
            "refused.",
            (
                f"nvidia-smi nvlink -s{chosen} && nvidia-smi nvlink -e{chosen}",
                *devices.settings(machine, ["nvidia-smi --gpu-reset"]),
            ),
        ),
    )
