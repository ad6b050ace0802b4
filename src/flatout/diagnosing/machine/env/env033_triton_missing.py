"""Triton is missing, so torch.compile cannot make kernels for the GPU.

## What it sees

On Linux a CUDA or ROCm build of torch without the package triton beside it (usually after `pip
install --no-deps`). On Windows it is reported only if a compiled function was tried and failed
because Triton is missing: there torch's wheels do not bring it.

## Why it matters

torch.compile stops with "Cannot find a working triton installation", and libraries that bring
Triton kernels do not import.

## Cure

Install the Triton that this torch release was built with. On Windows: triton-windows, a port that
is kept by the community.

## References

- https://github.com/triton-lang/triton
- https://github.com/triton-lang/triton-windows
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import pytorch as wheels
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Torch
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV033", severity=Severity.WARNING, since="0.2.0")
NAMES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """A warning on Linux; a note on Windows after a failed compilation."""
    python, torch = machine.interpreter, machine.torch
    if python is None or torch is None or python.packages is None:
        return
    gpu = software.cuda_of(torch) or software.rocm_of(torch)
    release = software.numbers(torch.version)
    if not gpu or release is None or release < (2, 0) or software.package(machine, *NAMES):
        return
    windows = software.on(machine, "Windows")
    failed = torch.compile_works is False and "triton" in (torch.compile_error or "").lower()
    linux = software.on(machine, "Linux") and machine.system.architecture == "x86_64"
    if not linux and not (windows and failed):
        return
    failure = f"; a compiled function failed: {torch.compile_error}" if failed else ""
    yield Diagnosis(
        title=f"{software.label(torch)} has no Triton beside it: no torch.compile on the GPU",
        evidence=f"none of {', '.join(NAMES)} is installed{software.shortened(failure, 200)}",
        cure=Cure("Install the Triton of this torch release.", _commands(machine, torch)),
        severity=Severity.NOTE if windows else None,
    )


def _commands(machine: Machine, torch: Torch) -> tuple[str, ...]:
    release = pytorch.release(torch.version) if torch.version else None
    if software.rocm_of(torch) or release is None or release.triton is None:
        return software.install_torch(machine)
    place = software.torch_target(machine)
    if place.system == "Windows":
        minor = ".".join(release.triton.split(".")[:2])
        return wheels.package_commands(place, install=(f"triton-windows=={minor}.*",))
    return wheels.package_commands(place, install=(f"triton=={release.triton}",))
