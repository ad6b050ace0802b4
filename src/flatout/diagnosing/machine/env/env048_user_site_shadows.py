"""Packages in the user's own site folder come before those of the environment.

## What it sees

A conda or virtual environment in which the user site folder (~/.local/lib/python3.x) is visible,
and packages that matter for training found there.

## Why it matters

The user site comes before the environment's folder on Python's path. An old `pip install --user`
then decides which torch, NumPy or CUDA library runs in every environment with the same Python
version, whatever you install into it.

## Cure

PYTHONNOUSERSITE=1 hides the folder; then install missing packages into the environment.

## References

- https://docs.python.org/3/using/cmdline.html#envvar-PYTHONNOUSERSITE
- https://docs.python.org/3/library/site.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Package
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV048", severity=Severity.WARNING, since="0.2.0", hides=("ENV030",))
USER_SITE = re.compile(
    r"/\.local/lib/python3|[\\/]AppData[\\/]Roaming[\\/]Python|/Users/[^/]+/Library/Python/"
)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding with all packages there."""
    python = machine.interpreter
    if python is None or not python.user_site:
        return
    if not (python.virtual_environment or python.conda):
        return
    everything = (*(python.packages or ()), *python.duplicates)
    packages = [
        package for package in everything if package.location and USER_SITE.search(package.location)
    ]
    if not packages:
        return
    names = sorted({f"{package.name} {package.version or ''}".strip() for package in packages})
    yield Diagnosis(
        title=software.shortened(f"the user's site folder comes first: {', '.join(names)}"),
        evidence=f"{', '.join(names)} in {packages[0].location}; environment of "
        f"{python.executable or 'this Python'}",
        cure=Cure(
            "Hide the folder, then install into the environment what is missing.",
            _commands(machine, packages),
        ),
    )


def _commands(machine: Machine, packages: list[Package]) -> tuple[str, ...]:
    """If torch is only in that folder, it must also be installed into the environment."""
    hide = system_packages.variable(target.of(machine), "PYTHONNOUSERSITE", "1")
    python = machine.interpreter
    copies = [
        package for package in (python.duplicates if python else ()) if package.name == "torch"
    ]
    alone = any(package.name == "torch" for package in packages) and all(
        copy in packages for copy in copies
    )
    return (*hide, *software.install_torch(machine)) if alone else hide
