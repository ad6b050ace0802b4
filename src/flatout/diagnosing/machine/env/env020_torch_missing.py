"""The Python that runs the training has no torch.

## What it sees

The interpreter answered, but torch is not among its packages.

## Why it matters

`import torch` ends with ModuleNotFoundError. Often torch is there, in another Python.

## Cure

Install the build of torch that fits this machine's GPU and driver, or run the Python that has it.

## References

- https://pytorch.org/get-started/locally/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV020", severity=Severity.ERROR, since="0.2.0")
VENDORS = ("nvidia", "amd", "intel", "apple")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding; an error if a GPU waits for torch."""
    python = machine.interpreter
    if python is None or not machine.torch_missing or software.package(machine, "torch", "pytorch"):
        return
    gpus = [gpu for vendor in VENDORS for gpu in software.capable(machine, vendor)]
    where = python.executable or "the Python that runs the training"
    evidence = [f"Python {python.version or '?'} at {where} has no package torch"]
    evidence += [f"GPU here: {software.gpu_name(gpus[0])}"] if gpus else []
    yield Diagnosis(
        title=f"torch is not installed in Python {python.version or ''}".rstrip(),
        evidence="; ".join(evidence),
        cure=Cure(
            "Install torch into this Python, or run the one that has it.",
            software.install_torch(machine),
        ),
        severity=Severity.ERROR if gpus else Severity.WARNING,
    )
