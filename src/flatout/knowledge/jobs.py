"""JobFacts as short plain values for a file, and back."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from flatout.nouns.decoding import MISSING, decode
from flatout.nouns.identity import Identity
from flatout_agent.wire import JobFacts


def facts(values: Mapping[str, Any]) -> JobFacts:
    """JobFacts from plain values. Raises ValueError naming a field that is missing or mistyped."""
    job = decode(JobFacts, dict(values), _raise_invalid, "job", absent_is_none=True)
    assert job is not None  # invalid values raise
    return job


def values(job: JobFacts) -> dict[str, Any]:
    """The facts that are known and differ from their defaults."""
    return _short(job)


MEASURED = ("shares", "noise")
"""Fields that only affect the order of trials in one tuning, not the plan."""


def _short(value: Any) -> dict[str, Any]:
    values_by_name = {}
    for field in dataclasses.fields(value):
        field_value = getattr(value, field.name)
        if field_value is not None and field_value != field.default and field.name not in MEASURED:
            nested = (
                isinstance(field_value, tuple)
                and bool(field_value)
                and dataclasses.is_dataclass(field_value[0])
            )
            values_by_name[field.name] = (
                [_short(element) for element in field_value] if nested else field_value
            )
    return values_by_name


def _raise_invalid(place: str, value: Any) -> None:
    problem = "is missing" if value is MISSING else f"is {value!r}"
    raise ValueError(f"{place} {problem}")


def unseen(machine: Identity | None) -> JobFacts:
    """The facts about a program if only the machine is known."""
    return JobFacts(
        torch=(machine and machine.torch) or "",
        python=(machine and machine.python) or "",
        system=sys.platform,
        device="cuda" if machine and machine.gpus else "cpu",
        cores=(machine and machine.cores) or 1,
    )
