"""The Python interpreter for the training does not answer.

## What it sees

The interpreter did not list its packages: it is not Python, is too old to be examined (older than
3.10), cannot be started, or ends with an error. One that was only slow is a note.

## Why it matters

Nothing about torch can be known then, and all findings about it are missing: "healthy" means less
than it seems. On Windows the file under WindowsApps is often not Python but a link to the Microsoft
Store.

## Cure

Name the interpreter that runs the training with --python; where it is too old, make an environment
with a newer one. With --deep a slow one gets more time.

## References

- https://docs.pytorch.org/get-started/locally/
- https://docs.python.org/3/using/windows.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import shell, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Interpreter
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV075", severity=Severity.ERROR, since="0.2.0")
SHOP = "WindowsApps"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if its packages are unknown and the reason is known."""
    python = machine.interpreter
    if python is None or python.error is None or python.packages is not None:
        return
    slow = python.timed_out
    subject = f"Python {python.version}" if python.version else "the Python for the training"
    yield Diagnosis(
        title=f"{subject} does not answer{' in time' if slow else ''}: nothing is known of its "
        "torch",
        evidence=f"{python.executable or 'its path is not known'}: {python.error}",
        cure=Cure(*_cure(machine, python, slow)),
        severity=Severity.NOTE if slow else None,
    )


def _cure(machine: Machine, python: Interpreter, slow: bool) -> tuple[str, tuple[str, ...]]:
    place = target.of(machine)
    if slow:
        return "Try again; with --deep it gets more time.", ("flatout doctor --deep",)
    if python.version is not None or SHOP in (python.executable or ""):
        return "Make an environment with a supported Python.", software.new_environment(place)
    listed = "where.exe python" if place.system == "Windows" else "which -a python3 python"
    return (
        "Name the interpreter that runs the training.",
        (
            f'{shell.python(place)} -c "import sys; print(sys.version)"',
            listed,
            "# then: flatout doctor --python PATH",
        ),
    )
