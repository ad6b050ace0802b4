"""Another copy of torch, or the user's own site folder, comes before the environment's packages.

## What it sees

- A conda or virtual environment in which the user site folder (~/.local/lib/python3.x) is visible,
  and packages that matter for training found there.
- Otherwise two copies of torch in one interpreter: one from conda and one from pip, or in two
  folders of its search path.

## Why it matters

The user site comes before the environment's folder on Python's path. An old `pip install --user`
then decides which torch, NumPy or CUDA library runs in every environment with the same Python
version, whatever you install into it.

Which of two copies is imported depends on the order of the search path; files of both mix, so that
imports fail with undefined symbols or the wrong CUDA is used. An update changes one and not the
other.

## Cure

PYTHONNOUSERSITE=1 hides the user site; then install missing packages into the environment. Of
several copies remove every one, then install torch once.

## References

- https://docs.python.org/3/using/cmdline.html#envvar-PYTHONNOUSERSITE
- https://docs.python.org/3/library/site.html
- https://www.anaconda.com/blog/using-pip-in-a-conda-environment
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import pytorch, system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Interpreter, Package
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV030", severity=Severity.WARNING, since="0.2.0")
NAMES = ("torch", "pytorch")
USER_SITE = re.compile(
    r"/\.local/lib/python3|[\\/]AppData[\\/]Roaming[\\/]Python|/Users/[^/]+/Library/Python/"
)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding, with all packages of the user site or all copies of torch."""
    python = machine.interpreter
    if python is None:
        return
    copies = [package for package in python.duplicates if package.name in NAMES]
    if packages := _in_user_site(python):
        yield _shadowed(machine, python, packages)
    elif len(copies) > 1:
        facts: list[str] = []
        lines: list[str] = []
        for copy in copies:
            where = f" in {copy.location}" if copy.location else ""
            by = f" by {copy.installer}" if copy.installer else ""
            facts.append(f"{copy.name} {copy.version or '?'}{where}{by}")
            conda = copy.installer == "conda"
            name = "pytorch" if conda else "torch"
            manager = "conda" if conda else "uv" if copy.installer == "uv" else "pip"
            lines += pytorch.package_commands(target.of(machine, manager), remove=(name,))
        yield Diagnosis(
            title=f"torch is installed {len(copies)} times in one Python",
            evidence="; ".join(facts),
            cure=Cure(
                "Remove every copy, then install torch once.",
                (*lines, *software.install_torch(machine)),
            ),
        )


def _in_user_site(python: Interpreter) -> list[Package]:
    """The packages there, if an environment's Python sees the folder."""
    if not python.user_site or not (python.virtual_environment or python.conda):
        return []
    everything = (*(python.packages or ()), *python.duplicates)
    return [
        package for package in everything if package.location and USER_SITE.search(package.location)
    ]


def _shadowed(machine: Machine, python: Interpreter, packages: list[Package]) -> Diagnosis:
    names = sorted({f"{package.name} {package.version or ''}".strip() for package in packages})
    hide = system_packages.variable(target.of(machine), "PYTHONNOUSERSITE", "1")
    alone = any(package.name == "torch" for package in packages) and all(
        copy in packages for copy in python.duplicates if copy.name == "torch"
    )
    return Diagnosis(
        title=software.shortened(f"the user's site folder comes first: {', '.join(names)}"),
        evidence=f"{', '.join(names)} in {packages[0].location}; environment of "
        f"{python.executable or 'this Python'}",
        cure=Cure(
            "Hide the folder, then install into the environment what is missing.",
            (*hide, *software.install_torch(machine)) if alone else hide,
        ),
    )
