"""Several CUDA toolkits are installed, and the one that matches torch does not come first.

## What it sees

More than one toolkit; CUDA_HOME, or the first nvcc on PATH, is one whose version is not that of
torch's CUDA, and another one on this machine has it.

## Why it matters

CUDA extensions (flash-attn, apex, DeepSpeed's kernels, your own) are compiled with the toolkit that
comes first: they fail to build, or build and crash on import. torch without extensions is not
affected.

## Cure

Let CUDA_HOME and PATH name the one that fits.

## References

- https://pytorch.org/docs/stable/cpp_extension.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import CudaToolkit, Machine

CHECK = Check(code="ENV027", severity=Severity.WARNING, since="0.2.0", hides=("ENV026",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if the matching toolkit is installed but another precedes it."""
    toolkits = machine.toolkits or ()
    front = software.active_toolkit(machine)
    built_with = software.cuda_of(machine.torch)
    needed = software.numbers(built_with)
    fitting = next(
        (toolkit for toolkit in toolkits if software.numbers(toolkit.version) == needed), None
    )
    if front is None or front.version is None or needed is None or fitting is None:
        return
    if software.numbers(front.version) == needed:
        return
    listed = ", ".join(f"{toolkit.path} ({toolkit.version or '?'})" for toolkit in toolkits)
    reason = "CUDA_HOME names it" if front.cuda_home else "its nvcc comes first"
    yield Diagnosis(
        title=f"CUDA {front.version} comes first; torch was built with {built_with}",
        evidence=f"{listed}; first: {front.path} ({reason}); torch's CUDA is {built_with}",
        cure=Cure(
            f"Let CUDA_HOME and PATH name {fitting.path}; it matters for building extensions.",
            _commands(machine, fitting),
        ),
    )


def _commands(machine: Machine, toolkit: CudaToolkit) -> tuple[str, ...]:
    place = target.of(machine)
    if software.on(machine, "Windows"):
        lines = system_packages.variable(place, "CUDA_PATH", toolkit.path)
        return (*lines, f'$env:Path = "{toolkit.path}\\bin;$env:Path"')
    lines = system_packages.variable(place, "CUDA_HOME", toolkit.path)
    return (*lines, f'export PATH="{toolkit.path}/bin:$PATH"')
