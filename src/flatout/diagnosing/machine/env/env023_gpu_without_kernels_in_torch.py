"""The installed torch has no kernels for a GPU: it is newer, or older, than all of them.

## What it sees

- NVIDIA: the GPU's compute capability is above all architectures that torch was built for, and
  torch holds no code that the driver could translate for it; or it is below the oldest of them.
- AMD: its gfx number is not in torch's list of architectures, with the families that ROCm treats
  alike taken into account.

## Why it matters

torch sees the GPU, and the first operation ends with "CUDA error: no kernel image is available for
execution on the device", with "HIP error: invalid device function", or a segmentation fault. Newer
wheels leave old architectures out: those for CUDA 12.8 begin with Volta or Turing, those for CUDA
13 with Turing.

## Cure

Install a release and build that hold kernels for this GPU (for an old one, CUDA 12.6 or 11.8 of an
older release). Where another GPU here is supported, hide the old one from the job. If ROCm holds
kernels for a close relative (gfx1030 for the rest of RDNA 2, gfx1100 for the rest of RDNA 3),
HSA_OVERRIDE_GFX_VERSION lets the GPU run them: AMD does not support it, but it usually works.

## References

- https://developer.nvidia.com/cuda-gpus
- https://developer.nvidia.com/cuda-legacy-gpus
- https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#gpu-feature-list
- https://github.com/pytorch/pytorch/blob/main/RELEASE.md
- https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html
- https://github.com/ROCm/rocBLAS/issues/1339
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.interpreter import Torch
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV023", severity=Severity.ERROR, since="0.2.0")
VARIABLE = "HSA_OVERRIDE_GFX_VERSION"
RELATIVES = (
    (r"gfx103[1-6]", "gfx1030", "10.3.0"),
    (r"gfx110[1-3]", "gfx1100", "11.0.0"),
)
GENERIC = {
    "gfx9-generic": r"gfx90[0246c9]",
    "gfx9-4-generic": r"gfx94[0-2]|gfx950",
    "gfx10-1-generic": r"gfx101[0-3]",
    "gfx10-3-generic": r"gfx103[0-6]",
    "gfx11-generic": r"gfx110[0-3]|gfx115[0-3]",
    "gfx12-generic": r"gfx120[01]",
}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each architecture that is missing, one for all that are too old."""
    yield from _of_cuda(machine)
    yield from _of_rocm(machine)


def _of_cuda(machine: Machine) -> Iterator[Diagnosis]:
    torch, archs = machine.torch, software.arch_list(machine)
    oldest = pytorch.oldest_capability(archs)
    if torch is None or software.cuda_of(torch) is None or oldest is None:
        return
    gpus = [
        (gpu, gpu.compute_capability)
        for gpu in software.visible_gpus(machine)
        if gpu.compute_capability is not None
    ]
    old = [gpu for gpu, capability in gpus if capability < oldest]
    usable = [gpu for gpu, capability in gpus if capability >= oldest and gpu.index is not None]
    new = {
        capability: gpu
        for gpu, capability in gpus
        if capability >= oldest and not pytorch.supports(archs, capability)
    }
    for gpu in new.values():
        dotted = _dotted(gpu.compute_capability)
        yield Diagnosis(
            title=f"{software.label(torch)} has no kernels for {software.gpu_name(gpu)}",
            evidence=f"{software.gpu_name(gpu)} has compute capability {dotted}; this torch "
            f"holds {' '.join(archs)}",
            cure=Cure(
                f"Install a torch built for compute capability {dotted}.",
                software.install_torch(machine),
            ),
        )
    if old:
        yield _too_old(machine, torch, old[0], usable)


def _too_old(machine: Machine, torch: Torch, gpu: Gpu, usable: list[Gpu]) -> Diagnosis:
    """A warning only if another GPU is supported."""
    archs, capability = software.arch_list(machine), _dotted(gpu.compute_capability)
    if usable:
        indices = ",".join(str(gpu.index) for gpu in usable)
        text = f"Let the job see only the GPUs that this torch supports: {indices}."
        place = target.of(machine)
        lines = (
            *system_packages.variable(place, "CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            *system_packages.variable(place, "CUDA_VISIBLE_DEVICES", indices),
        )
    else:
        text = f"Install a build that still holds kernels for compute capability {capability}."
        lines = software.install_torch(machine)
    return Diagnosis(
        title=f"{software.gpu_name(gpu)} is too old for {software.label(torch)}",
        evidence=f"compute capability {capability}; the oldest in this torch is "
        f"{_dotted(pytorch.oldest_capability(archs))} ({' '.join(archs)})",
        cure=Cure(text, lines),
        severity=Severity.WARNING if usable else Severity.ERROR,
    )


def _dotted(capability: tuple[int, int] | None) -> str:
    return ".".join(map(str, capability or ()))


def _of_rocm(machine: Machine) -> Iterator[Diagnosis]:
    torch = machine.torch
    archs = tuple(_plain(arch) for arch in software.arch_list(machine))
    override = software.variable(machine, VARIABLE)
    if torch is None or not software.rocm_of(torch) or not archs or override:
        return
    gpus = {_plain(gpu.gfx): gpu for gpu in software.capable(machine, "amd") if gpu.gfx}
    families = [GENERIC[arch] for arch in archs if arch in GENERIC]
    for gfx, gpu in gpus.items():
        if gfx not in archs and not any(re.fullmatch(family, gfx) for family in families):
            yield Diagnosis(
                title=f"{software.label(torch)} has no kernels for {software.gpu_name(gpu)}",
                evidence=f"{software.gpu_name(gpu)} is {gfx}; this torch holds {' '.join(archs)}",
                cure=_relative(machine, gfx, archs),
            )


def _plain(gfx: str) -> str:
    """The name without the features after it, as in gfx90a:sramecc+:xnack-."""
    return gfx.partition(":")[0]


def _relative(machine: Machine, gfx: str, archs: tuple[str, ...]) -> Cure:
    for pattern, relative, number in RELATIVES:
        if re.fullmatch(pattern, gfx) and relative in archs:
            lines = system_packages.variable(target.of(machine), VARIABLE, number)
            return Cure(f"Run the kernels of {relative}; AMD does not support this.", lines)
    return Cure(f"Install a torch built for {gfx}.", software.install_torch(machine))
