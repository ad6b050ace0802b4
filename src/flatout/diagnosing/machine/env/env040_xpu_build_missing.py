"""There is an Intel GPU for training, and torch is not the build for it (XPU).

## What it sees

An Intel GPU that torch supports (Arc, also the Arc in Core Ultra processors, and Data Center GPU
Max), no GPU of NVIDIA or AMD beside it, and a torch for CPU or CUDA.

## Why it matters

`torch.xpu.is_available()` is False and the training runs on the processor.

## Cure

Replace it with the XPU build.

## References

- https://pytorch.org/docs/stable/notes/get_start_xpu.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV040", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if XPU is the build that fits."""
    torch, gpus = machine.torch, software.capable(machine, "intel")
    if torch is None or not gpus or machine.gpus_of("nvidia") or software.capable(machine, "amd"):
        return
    if not (software.cpu_build(torch) or software.cuda_of(torch)) or torch.xpu_available:
        return
    choice = software.choice(machine)
    if choice is None or choice.build != "xpu":
        return
    yield Diagnosis(
        title=f"{software.label(torch)} does not use {software.gpu_name(gpus[0])}",
        evidence=f"{software.gpu_name(gpus[0])}; torch's build is {torch.build or 'not XPU'}; the "
        f"build that fits is {choice.version}+xpu",
        cure=Cure("Replace it with the XPU build.", software.install_torch(machine)),
    )
