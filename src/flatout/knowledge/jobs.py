"""JobFacts as plain values that a file can hold, short, and back."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from flatout.nouns.decoding import MISSING, decode
from flatout.nouns.identity import Identity
from flatout_agent.wire import JobFacts


def facts(values: Mapping[str, Any]) -> JobFacts:
    """JobFacts from plain values. Raises ValueError naming what is missing or of a wrong type."""
    job = decode(JobFacts, dict(values), _refused, "job", absent_is_none=True)
    assert job is not None  # what is refused raises
    return job


def values(job: JobFacts | Mapping[str, Any]) -> dict[str, Any]:
    """What of the facts is known and not what a reader would assume anyway."""
    known = job if isinstance(job, JobFacts) else facts(job)
    return _short(known)


MEASURED = ("shares", "noise")
"""Fields that only order the trials of one tuning: a plan is the same without them."""


def _short(value: Any) -> dict[str, Any]:
    found = {}
    for item in dataclasses.fields(value):
        own = getattr(value, item.name)
        if own is not None and own != item.default and item.name not in MEASURED:
            nested = isinstance(own, tuple) and bool(own) and dataclasses.is_dataclass(own[0])
            found[item.name] = [_short(each) for each in own] if nested else own
    return found


def _refused(place: str, value: Any) -> None:
    told = "is missing" if value is MISSING else f"is {value!r}"
    raise ValueError(f"{place} {told}")


def unseen(machine: Identity | None) -> JobFacts:
    """What can be said of a program of which only the machine is known."""
    return JobFacts(
        torch=(machine and machine.torch) or "",
        python=(machine and machine.python) or "",
        system=sys.platform,
        device="cuda" if machine and machine.gpus else "cpu",
        cores=(machine and machine.cores) or 1,
    )
