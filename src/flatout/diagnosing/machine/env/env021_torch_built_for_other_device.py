"""torch is not built for the GPU of this machine, but for CPU only or for another vendor's GPUs.

## What it sees

There is a GPU for which a build of torch exists, and the installed one

- holds no GPU code (build `cpu`), or
- is of another vendor: a ROCm or XPU build on a machine whose only training GPU is NVIDIA's, a CUDA
  or XPU build where it is AMD's, a CUDA or ROCm build where it is Intel's. Integrated GPUs do not
  count, except the Arc in Core Ultra processors.

It is an error; for a GPU of Intel (Arc, Data Center GPU Max) a warning.

## Why it matters

`torch.cuda.is_available()` (`torch.xpu.is_available()`) is False and the training runs on the
processor: often 10 to 100 times slower. On Linux a plain `pip install torch` brings the CUDA build
whatever GPU is there, and pip keeps an installed CPU build, because its version satisfies every
requirement.

## Cure

Replace it with the build named, the one for this GPU.

## References

- https://pytorch.org/get-started/locally/
- https://pytorch.org/docs/stable/notes/get_start_xpu.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Torch
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV021", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))
NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if a build for the GPU exists."""
    torch = machine.torch
    nvidia, amd, intel = (software.capable(machine, vendor) for vendor in NAMES)
    gpus = nvidia or amd or intel
    if torch is None or not gpus:
        return
    vendor = _vendor(torch)
    unfit = software.cpu_build(torch) if vendor is None else not machine.gpus_of(vendor)
    choice = software.choice(machine) if unfit else None
    for_intel = gpus[0].vendor == "intel"
    if choice is None or choice.build == "cpu" or for_intel != (choice.build == "xpu"):
        return
    built = f"build {torch.build or 'without CUDA and ROCm'}"
    if vendor is not None:
        built = f"built for GPUs of {NAMES[vendor]}"
    gpu, build = software.gpu_name(gpus[0]), f"{choice.version}+{choice.build}"
    yield Diagnosis(
        title=f"{software.label(torch)} is "
        + (f"not for {gpu}" if vendor else f"for CPU only; {gpu} is idle"),
        evidence=f"{built}; here: {len(gpus)} x {gpu}; the build that fits is {build}",
        cure=Cure(f"Replace it with torch {build}.", software.install_torch(machine)),
        severity=Severity.WARNING if for_intel else Severity.ERROR,
    )


def _vendor(torch: Torch) -> str | None:
    """The vendor of the GPUs that it is built for."""
    if software.rocm_of(torch):
        return "amd"
    if torch.xpu or torch.build == "xpu" or torch.xpu_available:
        return "intel"
    return "nvidia" if software.cuda_of(torch) else None
