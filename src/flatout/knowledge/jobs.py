"""JobFacts as plain values that a file can hold, short, and back."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from flatout.nouns.identity import Identity
from flatout_agent.wire import JobFacts, decode


def facts(values: Mapping[str, Any]) -> JobFacts:
    """JobFacts from plain values. Raises ValueError naming what is missing."""
    return decode(JobFacts, _completed(JobFacts, values, "job"))


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


def _completed(cls: type[Any], raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """With None for what may be unknown, has no default and is not there."""
    hints = typing.get_type_hints(cls)
    found = dict(raw)
    for item in dataclasses.fields(cls):
        if item.name in raw:
            inner = typing.get_args(hints[item.name])[:1]
            if inner and dataclasses.is_dataclass(inner[0]):
                found[item.name] = [
                    _completed(typing.cast("type[Any]", inner[0]), each, f"{where}.{item.name}")
                    for each in raw[item.name]
                ]
        elif item.default is dataclasses.MISSING and item.name not in MEASURED:
            if not _optional(hints[item.name]):
                raise ValueError(f"{where}.{item.name} is missing")
            found[item.name] = None
    return found


def _optional(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union) and type(
        None
    ) in typing.get_args(hint)


def unseen(machine: Identity | None) -> JobFacts:
    """What can be said of a program of which only the machine is known."""
    return JobFacts(
        torch=(machine and machine.torch) or "",
        python=(machine and machine.python) or "",
        system=sys.platform,
        device="cuda" if machine and machine.gpus else "cpu",
        cores=(machine and machine.cores) or 1,
    )
