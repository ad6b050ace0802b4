"""The GPU is newer than every kernel in the installed torch.

## What it sees

The GPU's compute capability is above all architectures that torch was built for, and torch holds no
code that the driver could translate for it.

## Why it matters

torch sees the GPU, and the first operation ends with "CUDA error: no kernel image is available for
execution on the device".

## Cure

Install a release and build that hold kernels for this GPU.

## References

- https://developer.nvidia.com/cuda-gpus
- https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#gpu-feature-list
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV023", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each model of GPU that is too new."""
    torch = machine.torch
    if torch is None or software.cuda_of(torch) is None:
        return
    archs = software.arch_list(machine)
    oldest = pytorch.oldest_capability(archs)
    gpus = {gpu.compute_capability: gpu for gpu in software.visible_gpus(machine)}
    for capability, gpu in gpus.items():
        if capability is None or oldest is None or capability < oldest:
            continue
        if pytorch.supports(archs, capability):
            continue
        number = ".".join(map(str, capability))
        yield Diagnosis(
            title=f"{software.label(torch)} has no kernels for {software.gpu_name(gpu)}",
            evidence=f"{software.gpu_name(gpu)} has compute capability {number}; this torch holds "
            f"{' '.join(archs)}",
            cure=Cure(
                f"Install a torch built for compute capability {number}.",
                software.install_torch(machine),
            ),
        )
