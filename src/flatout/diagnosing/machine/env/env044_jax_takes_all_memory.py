"""JAX takes three quarters of the GPU's memory at its first operation.

## What it sees

JAX with a GPU plugin, and none of the variables that change its allocation. It is a warning where
torch for the GPU lives in the same environment, else a note.

## Why it matters

JAX preallocates 75 % of each GPU. A second process, or torch in the same one, then stops with "out
of memory" on a GPU that does little.

## Cure

XLA_PYTHON_CLIENT_PREALLOCATE=false lets it grow as needed; XLA_PYTHON_CLIENT_MEM_FRACTION=.40 takes
a smaller share.

## References

- https://docs.jax.dev/en/latest/gpu_memory_allocation.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV044", severity=Severity.WARNING, since="0.2.0")
VARIABLES = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """A warning beside torch, else a note."""
    jax = machine.interpreter.jax if machine.interpreter else None
    plugin = (jax.cuda_plugin or jax.rocm_plugin) if jax else None
    gpus = machine.gpus_of("nvidia") or machine.gpus_of("amd")
    if jax is None or plugin is None or not gpus or machine.environment is None:
        return
    if any(name in machine.environment for name in VARIABLES):
        return
    torch = machine.torch
    beside = torch is not None and bool(software.cuda_of(torch) or software.rocm_of(torch))
    also = f"; {software.label(torch)} is in the same environment" if torch and beside else ""
    yield Diagnosis(
        title="JAX takes 75 % of the GPU's memory at its first operation",
        evidence=f"jax {jax.version or '?'} with GPU plugin {plugin}, {VARIABLES[0]} is not "
        f"set{also}",
        cure=Cure(
            "Let it grow as needed.",
            system_packages.variable(target.of(machine), VARIABLES[0], "false"),
        ),
        severity=Severity.WARNING if beside else Severity.NOTE,
    )
