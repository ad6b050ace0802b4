"""Checks: one problem per file; the folder is the table.

The file's name (underscores for hyphens) is the check's id, and names the problem: it reads well
after "allow". A check module has

    CHECK = Check(code="ENV014", severity=Severity.WARNING, since="0.2.0")

    def check(machine: Machine) -> Iterator[Diagnosis]

`check` is pure: no file, no process, no clock. It yields nothing where a fact that it needs is
None: what is not known is not claimed. It may be asked about any machine, also of another system.
The module docstring is the page that `flatout explain CODE` prints, with the headings What it sees
/ Why it matters / Evidence / Cure / References; its first line says the problem in one sentence.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine


@dataclass(frozen=True)
class Check:
    """A check's identity; its id is its file's name."""

    code: str
    severity: Severity
    """Of its findings, where they do not say otherwise."""
    since: str
    hides: tuple[str, ...] = ()
    """Codes of mere consequences of this problem: they are left out where this one is found."""


@dataclass(frozen=True)
class Diagnosis:
    """What a check found: a Finding without the check's own name."""

    title: str
    evidence: str
    cure: Cure
    severity: Severity | None = None
    """None: the check's."""
    where: str | None = None
    """file:line in the user's code."""
    boost: str | None = None
    """The boost that cures it without an edit."""
    saves_ms: float | None = None
    """Of a step, when it is cured; None: not predicted."""
    reason: str = ""
    """How that was computed, in numbers."""


class CheckModule(Protocol):
    """What each file in this folder defines."""

    __name__: str
    __doc__: str | None
    CHECK: Check

    def check(self, machine: Machine) -> Iterator[Diagnosis]: ...


def names() -> list[str]:
    """The ids of all checks, sorted."""
    return sorted(item.name.replace("_", "-") for item in pkgutil.iter_modules(__path__))


def load(check_id: str) -> CheckModule:
    """The module of one check."""
    module = importlib.import_module(f"{__name__}.{check_id.replace('-', '_')}")
    return cast("CheckModule", module)
