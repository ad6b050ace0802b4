"""torch is installed more than once in one Python.

## What it sees

The interpreter finds two copies of torch: one from conda and one from pip, or in two folders of its
search path.

## Why it matters

Which copy is imported depends on the order of the search path; files of both mix, so that imports
fail with undefined symbols or the wrong CUDA is used. An update changes one copy and not the other.

## Cure

Remove every copy, then install torch once.

## References

- https://www.anaconda.com/blog/using-pip-in-a-conda-environment
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import pytorch, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Package
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV030", severity=Severity.WARNING, since="0.2.0")
NAMES = ("torch", "pytorch")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding with all copies."""
    python = machine.interpreter
    copies = [package for package in (python.duplicates if python else ()) if package.name in NAMES]
    if len(copies) < 2:
        return
    yield Diagnosis(
        title=f"torch is installed {len(copies)} times in one Python",
        evidence="; ".join(_facts(copy) for copy in copies),
        cure=Cure("Remove every copy, then install torch once.", _commands(machine, copies)),
    )


def _facts(copy: Package) -> str:
    where = f" in {copy.location}" if copy.location else ""
    by = f" by {copy.installer}" if copy.installer else ""
    return f"{copy.name} {copy.version or '?'}{where}{by}"


def _commands(machine: Machine, copies: list[Package]) -> tuple[str, ...]:
    lines: list[str] = []
    for copy in copies:
        conda = copy.installer == "conda"
        name = "pytorch" if conda else "torch"
        manager = "conda" if conda else "uv" if copy.installer == "uv" else "pip"
        lines += pytorch.package_commands(target.of(machine, manager), remove=(name,))
    return (*lines, *software.install_torch(machine))
