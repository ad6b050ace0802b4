"""Facts from foreign JSON: whole nouns come back as they were, wrong types are refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.decoding import decode
from flatout.nouns.finding import Severity
from flatout.nouns.machine import Machine, Memory
from machines.healthy import HEALTHY

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def refused(cls: type[Any], raw: Any) -> tuple[Any, list[str]]:
    places: list[str] = []
    return decode(cls, raw, lambda place, value: places.append(place)), places


@pytest.mark.parametrize("name", HEALTHY)
def test_a_machine_survives_json(name: str) -> None:
    machine = HEALTHY[name]()
    raw = json.loads(json.dumps(dataclasses.asdict(machine)))
    assert refused(Machine, raw) == (machine, [])


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({"memory": {"total_bytes": "much"}}, "memory.total_bytes"),
        ({"memory": {"total_bytes": True}}, "memory.total_bytes"),
        ({"memory": {"total_bytes": 1.5}}, "memory.total_bytes"),
        ({"memory": []}, "memory"),
        ({"gpus": {"vendor": "nvidia"}}, "gpus"),
        ({"gpus": [{"vendor": "nvidia", "compute_capability": [8]}]}, "gpus[0].compute_capability"),
        ({"gpus": [{"name": "no vendor"}]}, "gpus[0]"),
        ({"environment": {"A": 1}}, "environment"),
    ],
)
def test_a_wrong_type_is_refused(raw: Any, place: str) -> None:
    machine, places = refused(Machine, raw)
    assert isinstance(machine, Machine)
    assert place in places


def test_what_a_newer_version_added_is_passed_over() -> None:
    assert refused(Memory, {"total_bytes": 4, "colour": "red"}) == (Memory(total_bytes=4), [])


def fail(place: str, value: Any) -> None:
    pytest.fail(f"{place}: {value!r}")


@given(JSON)
def test_any_json_makes_a_machine_or_none(raw: Any) -> None:
    machine, places = refused(Machine, raw)
    assert machine is None or isinstance(machine, Machine)
    if not isinstance(raw, dict):
        assert (machine, places) == (None, ["Machine"])


NAMES = [item.name for item in dataclasses.fields(Machine)]


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_values_of_its_fields_are_taken_or_refused(raw: dict[str, Any]) -> None:
    machine, places = refused(Machine, raw)
    assert isinstance(machine, Machine)
    for name, value in raw.items():
        kept = getattr(machine, name)
        told = any(place == name or place.startswith((f"{name}.", f"{name}[")) for place in places)
        assert (
            told
            or dataclasses.is_dataclass(kept)
            or kept == (tuple(value) if isinstance(value, list) and kept == () else kept)
        )
        if not told and isinstance(value, str):
            assert kept == value


@dataclasses.dataclass(frozen=True)
class Example:
    phase: Literal["warmup", "window"]
    severity: Severity
    note: str | None
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    ratio: float = 0.0


WHOLE = {"phase": "window", "severity": "note", "note": None, "shares": {"a": 1}, "ratio": 2}


def test_literals_and_enums_are_read_by_their_values() -> None:
    example = decode(Example, WHOLE, fail)
    assert example == Example("window", Severity.NOTE, None, {"a": 1.0}, 2.0)
    assert example is not None and isinstance(example.severity, Severity)
    for wrong in ({"phase": "lunch"}, {"severity": "mild"}, {"severity": 3}):
        assert decode(Example, {**WHOLE, **wrong}) is None
    assert decode(Example, {**WHOLE, "shares": {"a": "b"}}) == Example(
        "window", Severity.NOTE, None, ratio=2.0
    )


def test_what_null_and_absence_mean_is_the_callers_choice() -> None:
    some = {name: value for name, value in WHOLE.items() if name != "note"}
    assert refused(Example, some) == (None, ["note", "Example"])
    assert decode(Example, some, fail, absent_is_none=True) == decode(Example, WHOLE)
    assert refused(Example, {**WHOLE, "ratio": None})[1] == ["ratio"]
    example = decode(Example, {**WHOLE, "ratio": None}, fail, null_is_nan=True)
    assert example is not None and math.isnan(example.ratio)
