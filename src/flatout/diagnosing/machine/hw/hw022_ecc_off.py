"""Error correction of a data-center GPU's memory is switched off.

## What it sees

A data-center GPU with ECC off.

## Why it matters

A flipped bit then silently changes a weight, a gradient or an index. Over thousands of GPU hours
that happens. On GPUs with HBM correction costs no memory and no speed; with GDDR6 it costs about 6
% of the memory.

## Cure

Switch ECC on and restart (or reset the GPU), unless it is off on purpose.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW022", severity=Severity.NOTE, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all data-center GPUs with ECC off."""
    off = [
        gpu for gpu in machine.gpus_of("nvidia") if gpu.ecc is False and devices.data_center(gpu)
    ]
    if not off:
        return
    yield Diagnosis(
        title=f"{devices.subject(off)}: memory without error correction",
        evidence=devices.facts(off, lambda gpu: "ECC off"),
        cure=Cure(
            "Switch ECC on; it holds from the next restart on.",
            devices.settings(machine, [devices.smi(off, "-e 1"), "reboot"]),
        ),
    )
