"""A GPU is divided into slices (MIG): torch sees one slice of it.

## What it sees

MIG mode is on. With slices it is a note; without any slice it is an error, because then there is
nothing on this GPU that CUDA could use. A container or job that has its slice is not told so of
others, whose slices it cannot see.

## Why it matters

A CUDA program uses exactly one slice, with its part of memory and cores, whatever the GPU has;
several slices cannot be joined, and there is no direct exchange between them.

## Evidence

The slices by profile, and the memory of the whole GPU.

## Cure

To train on the whole GPU: switch MIG off when nothing runs on it. To choose a slice: its UUID
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
    # a job or a container that was given a slice of one GPU does not see those of others
    assigned = bool(driver_state.cuda_works(machine)) and (
        machine.container.kind is not None or bool(driver_state.withheld(machine))
    )
    empty = [gpu for gpu in divided if not gpu.mig_slices and not assigned]
    sliced = [gpu for gpu in divided if gpu.mig_slices]
    if empty:
        yield Diagnosis(
            title=f"{devices.subject(empty)}: MIG is on without any slice",
            evidence=devices.facts(empty, lambda gpu: "MIG mode on, 0 slices"),
            cure=Cure(
                "Switch MIG off to use the whole GPU; or make slices of it: the remark lists the "
                "profiles.",
                (
                    *devices.settings(machine, [devices.smi(empty, "-mig 0")]),
                    "# still on (pending)? End what runs there, then: nvidia-smi --gpu-reset",
                    "# profiles for slices: nvidia-smi mig -lgip",
                ),
            ),
            severity=Severity.ERROR,
        )
    if sliced:
        yield Diagnosis(
            title=f"{devices.subject(sliced)}: divided by MIG, torch sees one slice",
            evidence=devices.facts(sliced, _facts),
            cure=Cure(
                "To train on the whole GPU switch MIG off (this removes the slices of all users).",
                (
                    "nvidia-smi -L",
                    *devices.settings(machine, [devices.smi(sliced, "-mig 0")]),
                ),
            ),
        )


def _facts(gpu: Gpu) -> str:
    whole = f" of {units.size(gpu.memory_bytes)}" if gpu.memory_bytes is not None else ""
    return f"slices {', '.join(gpu.mig_slices)}{whole}"
