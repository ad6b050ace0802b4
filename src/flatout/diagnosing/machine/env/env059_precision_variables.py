"""An environment variable overrides the precision that the program asks for.

## What it sees

NVIDIA_TF32_OVERRIDE=0 on a GPU with TF32 (Ampere and newer), and
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1.

## Why it matters

NVIDIA_TF32_OVERRIDE=0 switches TF32 off below torch: float32 matrix products and convolutions then
do without tensor cores, whatever the program sets, at a fraction of their speed.
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 does the opposite: all float32 matrix products are rounded to
TF32, even if the program asked for full precision; that is a note.

## Cure

Unset it and let the program choose: torch.set_float32_matmul_precision.

## References

- https://docs.nvidia.com/cuda/cublas/#tensor-core-usage
- https://pytorch.org/docs/stable/cuda_environment_variables.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV059", severity=Severity.WARNING, since="0.2.0")
OFF, FORCED = "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """A warning for TF32 forbidden, a note for TF32 forced."""
    able = [
        gpu
        for gpu in machine.gpus_of("nvidia")
        if gpu.compute_capability is not None and gpu.compute_capability >= (8, 0)
    ]
    if not able:
        return
    here = target.of(machine)
    if (software.variable(machine, OFF) or "").strip() == "0":
        yield Diagnosis(
            title=f"{OFF}=0: float32 without tensor cores on {software.gpu_name(able[0])}",
            evidence=f"{OFF}=0; {software.gpu_name(able[0])} has TF32",
            cure=Cure(
                "Unset it; the program decides by torch.set_float32_matmul_precision.",
                system_packages.variable(here, OFF, None),
            ),
        )
    if (software.variable(machine, FORCED) or "").strip() == "1":
        yield Diagnosis(
            title=f"{FORCED}=1: every float32 matrix product is rounded to TF32",
            evidence=f"{FORCED}=1 overrides torch.set_float32_matmul_precision",
            cure=Cure(
                "Unset it where float32 must be exact.",
                system_packages.variable(here, FORCED, None),
            ),
            severity=Severity.NOTE,
        )
