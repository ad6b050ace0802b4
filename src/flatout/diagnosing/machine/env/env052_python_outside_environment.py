"""An environment is active, but another Python runs the training.

## What it sees

VIRTUAL_ENV or CONDA_PREFIX names a folder in which the interpreter does not lie. A conda base that
is merely switched on in every shell does not count while another environment's Python is used.

## Why it matters

You install packages into the environment, but run others from elsewhere: "No module named torch"
right after installing it.

## Cure

Call the environment's own Python, or leave the environment.

## References

- https://docs.python.org/3/library/venv.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV052", severity=Severity.WARNING, since="0.2.0", hides=("ENV020",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """A warning if the interpreter is in no environment, a note if it is in another one."""
    python = machine.interpreter
    if python is None or not python.executable or python.virtual_environment is None:
        return
    own = python.virtual_environment or bool(python.conda)
    name = "VIRTUAL_ENV" if software.variable(machine, "VIRTUAL_ENV") else "CONDA_PREFIX"
    folder = software.variable(machine, name)
    if not folder or _inside(python.executable, folder) or (name == "CONDA_PREFIX" and own):
        return
    windows = software.on(machine, "Windows")
    beside = "python.exe" if name == "CONDA_PREFIX" else "Scripts\\python.exe"
    interpreter = f"{folder}\\{beside}" if windows else f"{folder}/bin/python"
    leave = "deactivate" if name == "VIRTUAL_ENV" else "conda deactivate"
    yield Diagnosis(
        title=software.shortened(f"{name} is active, but another Python runs the training"),
        evidence=f"{name}={folder}; the interpreter is {python.executable}",
        cure=Cure(
            f"Run the job with {interpreter}, or leave the environment.",
            (f"{interpreter} -c 'import sys; print(sys.prefix)'", f"# or leave it: {leave}"),
        ),
        severity=Severity.NOTE if own else None,
    )


def _inside(path: str, folder: str) -> bool:
    inner, outer = (text.replace("\\", "/").rstrip("/") for text in (path, folder))
    if ":" in inner[:2]:
        inner, outer = inner.lower(), outer.lower()
    return inner.startswith(f"{outer}/")
