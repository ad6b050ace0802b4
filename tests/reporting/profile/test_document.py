"""flatout.profile/1: what others read is there, and all of it can be read back."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.nouns.errors import UserError
from flatout.nouns.profile import Profiled
from flatout.reporting.profile import document
from reporting import profiled_examples as examples


def written(profiled: Profiled) -> dict[str, Any]:
    """As it comes out of a file: JSON without NaN."""
    text = json.dumps(document.document(profiled), allow_nan=False)
    published: dict[str, Any] = json.loads(text)
    return published


@pytest.mark.parametrize("name", [*examples.ALL, "large"])
def test_all_of_it_can_be_read_again(name: str) -> None:
    profiled = getattr(examples, name)()
    assert document.read(written(profiled)) == profiled


def anything(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of that type, small; numbers are finite, since JSON has no others."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.none() | anything(args[0])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(anything(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(anything(args[0]), anything(args[1]), max_size=2)
    if origin is tuple:
        return st.tuples(*map(anything, args))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.deferred(lambda: st.builds(hint, **{k: anything(v) for k, v in hints.items()}))
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    plain = {
        bool: st.booleans(),
        int: st.integers(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=5),
    }
    return plain[hint]


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(anything(Profiled))
def test_anything_that_the_types_allow_comes_back(profiled: Profiled) -> None:
    assert document.read(written(profiled)) == profiled


def test_what_others_rely_on() -> None:
    published = written(examples.naive())
    assert published["schema"] == "flatout.profile/1"
    assert published["step_ms"] == pytest.approx(411.74)
    assert published["anatomy"][0]["part"] == "wait-data"
    assert published["anatomy"][0]["ms"] == 232.0
    assert published["anatomy"][0]["share"] == pytest.approx(232 / 411.74)
    assert sum(part["share"] for part in published["anatomy"]) == pytest.approx(1)
    first = published["findings"][0]
    assert first["code"] == "DATA001"
    assert first["severity"] == "warning"
    assert first["where"] == "train.py:80"
    assert first["evidence"] and first["boost"] == "loader-workers"
    assert first["cure"]["commands"] == list(examples.NO_WORKERS.cure.commands)
    assert first["gain"]["predicted"] == 2.29
    assert (first["gain"]["low"], first["gain"]["high"]) == (2.09, 2.54)
    assert published["findings"][3]["gain"] is None and published["findings"][3]["where"] is None
    assert published["largest_gain"] == pytest.approx(1 - 1 / 2.29)
    assert published["report"] == "/runs/1/profile.html"
    assert published["kernels"][0]["where"]["file"] == "resnet.py"


def test_newer_fields_are_passed_over() -> None:
    published = written(examples.naive())
    published["moon"] = published["anatomy"][0]["phase"] = published["findings"][0]["tide"] = 1
    assert document.read(published) == examples.naive()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "flatout.profile/2"}, "'flatout.profile/2'"),
        ({"schema": "flatout.doctor/1"}, "'flatout.doctor/1'"),
        ({"step_ms": "412"}, "step_ms is '412'"),
        ({"anatomy": [{"part": "lunch", "ms": 1.0}]}, "kind is 'lunch'"),
        ({"anatomy": None}, "cannot be read"),
        ({"findings": [{"code": "X"}]}, "cannot be read"),
        ({"kernels": {}}, "kernels is {}"),
        ({"kernels": ["mm"]}, r"kernels is \['mm'\]"),
        ({"checks": True}, "checks is True"),
        ({"capability": [8]}, "cannot be read"),
    ],
)
def test_what_is_no_profile_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        document.read({**written(examples.naive()), **change})


def test_a_file_is_named_where_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(UserError, match=r"profile\.json: No such file"):
        document.load(path)
    path.write_text("not json")
    with pytest.raises(UserError, match=r"profile\.json is not JSON"):
        document.load(path)
    path.write_text("[]")
    with pytest.raises(UserError, match=r"profile\.json: this is of schema None"):
        document.load(path)
    path.write_text(json.dumps(document.document(examples.naive())))
    assert document.load(path) == examples.naive()


def test_numbers_that_are_none_are_null() -> None:
    naive = examples.naive()
    anatomy = dataclasses.replace(naive.profile.anatomy, mfu=float("nan"))
    odd = dataclasses.replace(naive, profile=dataclasses.replace(naive.profile, anatomy=anatomy))
    assert written(odd)["step"]["mfu"] is None


def test_the_host_is_told_by_line_with_totals_and_the_factor_to_an_undisturbed_step() -> None:
    host = written(examples.scripted())["host"]
    assert host["lines"][0]["where"] == {
        "file": "train.py", "line": 14, "function": "mask", "source": "m[i][j] = 1.0",
    }  # fmt: skip
    assert (host["lines"][0]["kind"], host["lines"][0]["ms"]) == ("python", 40.0)
    assert host["threads"][0]["name"] == "watcher"
    assert host["stacks"][0]["kinds"] == ["python", "python", "python"]
    assert host["totals"] == {
        "torch": 20.0,
        "python": 40.0,
        "library": 17.5,
        "waiting": 10.0,
        "loading": 5.0,
        "garbage-collection": 2.5,
    }
    assert host["scale"] == pytest.approx(0.8)


def test_a_document_from_before_the_host_was_sampled_is_read() -> None:
    published = written(examples.scripted())
    del published["host"]
    assert document.read(published).profile.host is None
    published = written(examples.scripted())
    for stack in published["host"]["stacks"]:
        del stack["kinds"]
    del published["host"]["totals"], published["host"]["scale"]
    host = document.read(published).profile.host
    assert host is not None and not any(stack.kinds for stack in host.stacks)
