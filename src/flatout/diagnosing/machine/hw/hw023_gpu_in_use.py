"""Other programs are computing on a GPU now.

## What it sees

A GPU is busy by 30 % or more (80 % if it may drive a screen: an idle card that draws a desktop at
low clocks looks busy) over the driver's last sampling period, while flatout itself computes
nothing.

## Why it matters

Programs on one GPU take turns: training gets a share of it, and whatever is measured now is wrong.

## Cure

Wait, use an idle GPU, or end forgotten programs of your own.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW023", severity=Severity.WARNING, since="0.2.0")
BUSY = 0.30
BUSY_BESIDE_A_SCREEN = 0.80
NAMES = 4


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs that are busy."""
    gpus = machine.gpus or ()
    busy = [gpu for gpu in gpus if _busy(gpu)]
    if not busy:
        return
    yield Diagnosis(
        title=f"{devices.subject(busy)}: busy with other programs now",
        evidence=devices.facts(busy, _facts),
        cure=Cure(
            "Wait, or use an idle GPU: what is measured beside other programs is wrong.",
            _commands(machine, busy),
        ),
    )


def _busy(gpu: Gpu) -> bool:
    least = BUSY if gpu.display is False or devices.data_center(gpu) else BUSY_BESIDE_A_SCREEN
    return gpu.utilization is not None and gpu.utilization >= least


def _facts(gpu: Gpu) -> str:
    parts = [f"load {units.share(gpu.utilization)}"]
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:g} W")
    names = [f"{process.name or 'a program'} ({process.pid})" for process in gpu.processes or ()]
    parts.append(", ".join(names[:NAMES]) or "its programs cannot be seen from here")
    return ", ".join(parts)


def _commands(machine: Machine, busy: list[Gpu]) -> tuple[str, ...]:
    vendor = busy[0].vendor
    idle = [
        str(gpu.index)
        for gpu in machine.gpus_of(vendor)
        if gpu.index is not None and gpu.utilization is not None and gpu.utilization < BUSY
    ]
    look = "nvidia-smi" if vendor == "nvidia" else "rocm-smi"
    if vendor not in ("nvidia", "amd"):
        return ()
    if not idle:
        return (look,)
    return (look, *devices.only(machine, vendor, idle))
