"""torch is a CPU build, on a machine with an NVIDIA or AMD GPU.

## What it sees

torch holds no GPU code (build `cpu`), and there is a GPU for which a build exists. Intel GPUs have
their own check.

## Why it matters

`torch.cuda.is_available()` is False and the training runs on the processor: often 10 to 100 times
slower. pip keeps an installed CPU build, because its version satisfies every requirement.

## Cure

Remove the CPU build and install the one named.

## References

- https://pytorch.org/get-started/locally/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV021", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if a build for the GPU exists."""
    torch = machine.torch
    if torch is None or not software.cpu_build(torch):
        return
    gpus = software.capable(machine, "nvidia") or software.capable(machine, "amd")
    choice = software.choice(machine) if gpus else None
    if choice is None or choice.build == "cpu":
        return
    build = f"{choice.version}+{choice.build}"
    yield Diagnosis(
        title=f"{software.label(torch)} is for CPU only; {software.gpu_name(gpus[0])} is idle",
        evidence=f"build {torch.build or 'without CUDA and ROCm'}, {len(gpus)} x "
        f"{software.gpu_name(gpus[0])}; the build that fits is {build}",
        cure=Cure(f"Replace it with torch {build}.", software.install_torch(machine)),
    )
