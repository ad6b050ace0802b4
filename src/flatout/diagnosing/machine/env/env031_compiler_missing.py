"""There is no C++ compiler, so torch.compile cannot work.

## What it sees

A compiler was looked for and none was found, for a torch that has torch.compile (2.0 or newer).

## Why it matters

On a CPU torch.compile writes C++ and needs g++ or clang++ (Windows: cl.exe). On a GPU Triton builds
a small C file at its first launch and needs gcc or clang. Without one, compiled functions stop with
"Failed to find C compiler" or InvalidCxxCompiler. On Windows this is a note: most jobs there do not
compile.

## Cure

Install the system's compiler; in a conda environment without administrator's rights, conda's.

## References

- https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html
- https://pytorch.org/tutorials/prototype/inductor_windows.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV031", severity=Severity.WARNING, since="0.2.0")
COMPILERS = {"Windows": "cl.exe", "Darwin": "clang++"}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding; a note on Windows."""
    python, torch = machine.interpreter, machine.torch
    if python is None or torch is None or python.compiler or not python.compiler_searched:
        return
    release = software.numbers(torch.version)
    if release is None or release < (2, 0):
        return
    place = target.of(machine)
    lines = system_packages.commands(place, "compiler")
    if python.conda and software.on(machine, "Linux"):
        lines = (*lines, "# or without administrator's rights: conda install -c conda-forge gxx")
    compilers = COMPILERS.get(machine.system.name or "", "g++ and clang++")
    yield Diagnosis(
        title="no C++ compiler: torch.compile cannot work",
        evidence=f"looked for {compilers}, found none; {software.label(torch)} has torch.compile",
        cure=Cure("Install a compiler; only compiled functions need it.", lines),
        severity=Severity.NOTE if software.on(machine, "Windows") else None,
    )
