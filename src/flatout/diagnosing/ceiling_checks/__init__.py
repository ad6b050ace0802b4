"""Checks of measured ceilings: one problem per file; the folder is the table.

As `flatout.diagnosing.checks`, but beside the Machine, as it was under load, stands what it gave:

    CHECK = Check(code="HW024", severity=Severity.WARNING, since="0.2.0")

    def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]

A shortfall is told once for each device, with the cause that the driver names; only where it names
none is the shortfall itself the finding. What was not measured, or has no data sheet, is not
claimed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Protocol, cast

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.ceiling import Benched
from flatout.nouns.machine import Machine


class CeilingCheckModule(Protocol):
    """What each file in this folder defines."""

    __name__: str
    __doc__: str | None
    CHECK: Check

    def check(self, benched: Benched, machine: Machine) -> Iterator[Diagnosis]: ...


def names() -> list[str]:
    """The ids of all checks, sorted."""
    return sorted(item.name.replace("_", "-") for item in pkgutil.iter_modules(__path__))


def load(check_id: str) -> CeilingCheckModule:
    """The module of one check."""
    module = importlib.import_module(f"{__name__}.{check_id.replace('-', '_')}")
    return cast("CeilingCheckModule", module)
