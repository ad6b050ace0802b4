"""Python's headers (Python.h) are missing, so torch.compile and extensions cannot build.

## What it sees

There is no Python.h for the interpreter that runs the training. Linux distributions put it in a
package separate from Python.

## Why it matters

Triton builds a C file against Python.h at the first launch of a kernel, torch.compile does so on
CPU, and so does every extension: "fatal error: Python.h: No such file or directory".

## Cure

Install the package with the headers of exactly this Python version.

## References

- https://github.com/pytorch/pytorch/issues/129351
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV032", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding, for a torch that has torch.compile."""
    python, torch = machine.interpreter, machine.torch
    if python is None or torch is None or python.headers is not False:
        return
    release = software.numbers(torch.version)
    if release is None or release < (2, 0):
        return
    yield Diagnosis(
        title=f"Python.h is missing for Python {python.version or ''}".rstrip(),
        evidence=f"no headers for {python.executable or 'the interpreter'} "
        f"({python.version or 'version not known'})",
        cure=Cure(
            "Install the headers; torch.compile and extensions need them.",
            system_packages.commands(target.of(machine), "python-headers"),
        ),
    )
