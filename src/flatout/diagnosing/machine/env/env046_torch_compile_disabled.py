"""torch.compile is switched off by an environment variable.

## What it sees

TORCH_COMPILE_DISABLE=1 or TORCHDYNAMO_DISABLE=1, with a torch that has torch.compile.

## Why it matters

`torch.compile(model)` returns the model as it is, without a message: the job runs without fused
kernels.

## Cure

Unset it, in this shell and where it is set.

## References

- https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV046", severity=Severity.WARNING, since="0.2.0")
NAMES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for both variables."""
    torch = machine.torch
    release = software.numbers(torch.version) if torch else None
    variables = [name for name in NAMES if software.variable(machine, name) == "1"]
    if torch is None or not variables or release is None or release < (2, 0):
        return
    place = target.of(machine)
    yield Diagnosis(
        title=f"torch.compile is switched off by {' and '.join(variables)}",
        evidence=f"{', '.join(f'{name}=1' for name in variables)}; {software.label(torch)}",
        cure=Cure(
            "Unset it, or keep it if the job must not be compiled.",
            tuple(
                line for name in variables for line in system_packages.variable(place, name, None)
            ),
        ),
    )
