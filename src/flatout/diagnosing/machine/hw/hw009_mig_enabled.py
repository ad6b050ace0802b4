"""A GPU is divided into MIG instances: torch sees one of them.

## What it sees

MIG mode is on. With instances it is a note; without any it is an error, because CUDA then cannot
use this GPU at all. In a container or job that has an instance, other GPUs are not reported,
because it cannot see their instances.

## Why it matters

A CUDA program uses exactly one instance, with its part of the memory and cores; several instances
cannot be combined, and they cannot exchange data directly.

## Cure

To train on the whole GPU: switch MIG off when nothing runs on it. To choose an instance: its UUID
(nvidia-smi -L) in CUDA_VISIBLE_DEVICES.

## References

- https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices, driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW009", severity=Severity.NOTE, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for GPUs without slices, one for those with slices."""
    divided = [gpu for gpu in machine.gpus or () if gpu.mig]
    # a job or container that was given a slice of one GPU sees no slices of the others
    assigned = bool(driver_state.cuda_works(machine)) and (
        machine.container.kind is not None or bool(driver_state.withheld(machine))
    )
    empty = [gpu for gpu in divided if not gpu.mig_slices and not assigned]
    sliced = [gpu for gpu in divided if gpu.mig_slices]
    if empty:
        yield Diagnosis(
            title=f"{devices.subject(empty)}: MIG is enabled but has no instances",
            evidence=devices.facts(empty, lambda gpu: "MIG mode on, 0 instances"),
            cure=Cure(
                "Switch MIG off to use the whole GPU; or create instances: the remark lists the "
                "profiles.",
                (
                    *devices.settings(machine, [devices.smi(empty, "-mig 0")]),
                    "# still on (pending)? End what runs there, then: nvidia-smi --gpu-reset",
                    "# profiles for instances: nvidia-smi mig -lgip",
                ),
            ),
            severity=Severity.ERROR,
        )
    if sliced:
        yield Diagnosis(
            title=f"{devices.subject(sliced)}: divided by MIG, torch sees one instance",
            evidence=devices.facts(sliced, _facts),
            cure=Cure(
                "To train on the whole GPU, switch MIG off (this removes the instances of all "
                "users).",
                (
                    "nvidia-smi -L",
                    *devices.settings(machine, [devices.smi(sliced, "-mig 0")]),
                ),
            ),
        )


def _facts(gpu: Gpu) -> str:
    whole = f" of {units.size(gpu.memory_bytes)}" if gpu.memory_bytes is not None else ""
    return f"instances {', '.join(gpu.mig_slices)}{whole}"
