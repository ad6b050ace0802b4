"""The GPU is older than every kernel in the installed torch.

## What it sees

The GPU's compute capability is below the oldest architecture that torch was built for.

## Why it matters

torch warns that the GPU is not supported, and the first operation ends with "no kernel image is
available". Newer wheels leave old architectures out: those for CUDA 12.8 begin with Volta or
Turing, those for CUDA 13 with Turing.

## Cure

Install a build that still holds kernels for it (CUDA 12.6 or 11.8 of an older release). Where
another GPU here is supported, hide the old one from the job.

## References

- https://developer.nvidia.com/cuda-legacy-gpus
- https://github.com/pytorch/pytorch/blob/main/RELEASE.md
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV024", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding; a warning only if another GPU is supported."""
    torch = machine.torch
    if torch is None or software.cuda_of(torch) is None:
        return
    archs = software.arch_list(machine)
    oldest = pytorch.oldest_capability(archs)
    gpus = [gpu for gpu in software.visible_gpus(machine) if gpu.compute_capability is not None]
    old = [gpu for gpu in gpus if oldest and (gpu.compute_capability or oldest) < oldest]
    if not old or oldest is None:
        return
    usable = [gpu for gpu in gpus if gpu not in old and gpu.index is not None]
    capability = ".".join(map(str, old[0].compute_capability or ()))
    yield Diagnosis(
        title=f"{software.gpu_name(old[0])} is too old for {software.label(torch)}",
        evidence=f"compute capability {capability}; the oldest in this torch is "
        f"{'.'.join(map(str, oldest))} ({' '.join(archs)})",
        cure=_hide(machine, usable) if usable else _replace(machine, capability),
        severity=Severity.WARNING if usable else Severity.ERROR,
    )


def _hide(machine: Machine, usable: list[Gpu]) -> Cure:
    indices = ",".join(str(gpu.index) for gpu in usable)
    text = f"Let the job see only the GPUs that this torch supports: {indices}."
    place = target.of(machine)
    order = system_packages.variable(place, "CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return Cure(text, (*order, *system_packages.variable(place, "CUDA_VISIBLE_DEVICES", indices)))


def _replace(machine: Machine, capability: str) -> Cure:
    text = f"Install a build that still holds kernels for compute capability {capability}."
    return Cure(text, software.install_torch(machine))
