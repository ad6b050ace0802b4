"""Checks of a training job: one fault per file; the folder is the table.

As `flatout.diagnosing.checks`, but what is checked is a Profile:

    CHECK = Check(code="SYNC001", severity=Severity.WARNING, since="0.2.0")

    def check(profile: Profile) -> Iterator[Diagnosis]

A diagnosis tells the line of the user's code (`where`), the boost that cures it without an edit,
and what a step would save, with the arithmetic in words (`saves_ms`, `reason`). What the profile
does not hold (None, empty) is not claimed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Protocol, cast

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.profile import Profile


class ProfileCheckModule(Protocol):
    """What each file in this folder defines."""

    __name__: str
    __doc__: str | None
    CHECK: Check

    def check(self, profile: Profile) -> Iterator[Diagnosis]: ...


def names() -> list[str]:
    """The ids of all checks, sorted."""
    return sorted(item.name.replace("_", "-") for item in pkgutil.iter_modules(__path__))


def load(check_id: str) -> ProfileCheckModule:
    """The module of one check."""
    module = importlib.import_module(f"{__name__}.{check_id.replace('-', '_')}")
    return cast("ProfileCheckModule", module)
