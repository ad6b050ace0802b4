"""torch is built for the GPUs of another vendor than the one in this machine.

## What it sees

A ROCm or XPU build on a machine whose only training GPU is NVIDIA's, or a CUDA or XPU build on one
whose only training GPU is AMD's. Integrated GPUs do not count.

## Why it matters

`torch.cuda.is_available()` is False, and the training runs on the processor. On Linux a plain
`pip install torch` brings the CUDA build whatever GPU is there.

## Cure

Replace it with the build for this GPU.

## References

- https://pytorch.org/get-started/locally/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Torch
from flatout.nouns.machine import Machine

NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
CHECK = Check(code="ENV036", severity=Severity.ERROR, since="0.2.0", hides=("ENV025", "ENV033"))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if the machine's GPUs are all of vendors other than the build's."""
    torch = machine.torch
    built_for = _vendor(torch) if torch else None
    if torch is None or built_for is None or machine.gpus_of(built_for):
        return
    gpu = next(
        (gpu for vendor in ("nvidia", "amd") for gpu in software.capable(machine, vendor)), None
    )
    choice = software.choice(machine) if gpu else None
    if gpu is None or choice is None or choice.build == "cpu":
        return
    yield Diagnosis(
        title=f"{software.label(torch)} is not for {software.gpu_name(gpu)}",
        evidence=f"built for GPUs of {NAMES[built_for]}; here: {software.gpu_name(gpu)}; the build "
        f"that fits is {choice.version}+{choice.build}",
        cure=Cure("Replace it with the build for this GPU.", software.install_torch(machine)),
    )


def _vendor(torch: Torch) -> str | None:
    if software.rocm_of(torch):
        return "amd"
    if torch.xpu or torch.build == "xpu":
        return "intel"
    return "nvidia" if software.cuda_of(torch) else None
