"""Facts from foreign JSON: whole nouns come back as they were, wrong types are refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine, Memory
from flatout.probing.decoding import decode
from machines.healthy import HEALTHY

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def refused(cls: type[Any], raw: Any) -> tuple[Any, list[str]]:
    places: list[str] = []
    return decode(cls, raw, places.append), places


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
    found, places = refused(Machine, raw)
    assert isinstance(found, Machine)
    assert place in places


def test_what_a_newer_version_added_is_passed_over() -> None:
    assert refused(Memory, {"total_bytes": 4, "colour": "red"}) == (Memory(total_bytes=4), [])


def test_a_whole_number_may_stand_for_a_float() -> None:
    assert decode(Gpu, {"vendor": "amd", "power_w": 300}, pytest.fail) == Gpu("amd", power_w=300.0)


@given(JSON)
def test_any_json_makes_a_machine_or_none(raw: Any) -> None:
    found, places = refused(Machine, raw)
    assert found is None or isinstance(found, Machine)
    if not isinstance(raw, dict):
        assert (found, places) == (None, ["Machine"])


NAMES = [item.name for item in dataclasses.fields(Machine)]


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_values_of_its_fields_are_taken_or_refused(raw: dict[str, Any]) -> None:
    found, places = refused(Machine, raw)
    assert isinstance(found, Machine)
    for name, value in raw.items():
        kept = getattr(found, name)
        told = any(place == name or place.startswith((f"{name}.", f"{name}[")) for place in places)
        assert (
            told
            or dataclasses.is_dataclass(kept)
            or kept == (tuple(value) if isinstance(value, list) and kept == () else kept)
        )
        if not told and isinstance(value, str):
            assert kept == value
