"""Whatever a profile holds or lacks, no check fails, and no cure saves less than nothing."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import pytest
from hypothesis import strategies as st

from diagnosing.job import made
from flatout.diagnosing.diagnose import diagnose_profile
from flatout.nouns.anatomy import Anatomy, Kind
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Place, Profile
from flatout_agent import wire

MILLISECONDS = st.just(0.0) | st.floats(1e-3, 5000)
SOURCES = (
    "", "loss.item()", "x = x.to(device)", "x = torch.ones(3).to(device)", "print(loss)",
    "if loss > 1:", "MEAN.to(device)", "y = x[mask]", "torch.save(m, p)", "for x in loader:",
)  # fmt: skip
FUNCTIONS = ("", "forward", "__getitem__", "collate", "train_epoch")
NAMES = (
    "aten::item", "aten::mm", "aten::copy_", "cudaDeviceSynchronize", "open", "print", "torch.save",
    "all_reduce", "HtoD", "DtoH", "/data/a.h5", "float",
    "double", "AdamW",
    "torch.cuda.empty_cache", "DataParallel", "DistributedDataParallel", "32x64, 64x128", "cpu",
    "train.py:8", "torch.ones", "gc.collect",
)  # fmt: skip
PLACES = st.builds(
    Place,
    st.sampled_from(("train.py", "data.py")),
    st.integers(1, 3),
    st.sampled_from(FUNCTIONS),
    st.sampled_from(SOURCES),
)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    float: MILLISECONDS,
    int: st.integers(0, 10**12),
    bool: st.booleans(),
    str: st.sampled_from(NAMES),
    Kind: st.sampled_from(list(Kind)),
    HostKind: st.sampled_from(list(HostKind)),
    Place: PLACES,
}


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of this type: dataclasses with some of the fields that may be left out."""
    if hint in LEAVES:
        return LEAVES[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.none() | of(next(arg for arg in args if arg is not type(None)))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(of(args[0]), of(args[1]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(of, args))
    if hint is Anatomy:
        return anatomies()
    hints = typing.get_type_hints(hint)
    fields = [item for item in dataclasses.fields(hint) if item.init]
    missing = dataclasses.MISSING
    needed = [
        item.name for item in fields if item.default is missing and item.default_factory is missing
    ]
    others = [item.name for item in fields if item.name not in needed]
    return st.fixed_dictionaries(
        {name: of(hints[name]) for name in needed},
        optional={name: of(hints[name]) for name in others},
    ).map(lambda values: hint(**values))


@st.composite
def anatomies(draw: st.DrawFn) -> Anatomy:
    """Parts that add up, of a device or a CPU; also an empty step."""
    parts = draw(st.dictionaries(st.sampled_from(list(Kind)), MILLISECONDS, max_size=8))
    made_of = made.anatomy(draw(st.sampled_from(("cuda", "cpu"))), parts)
    launches = draw(st.floats(0, 3000))
    return dataclasses.replace(
        made_of,
        parts=tuple(dataclasses.replace(part, launches=launches) for part in made_of.parts),
        cores_busy=draw(st.none() | st.floats(0, 64)),
        cores=draw(st.none() | st.integers(1, 64)),
    )


@pytest.mark.parametrize("make", [made.profile, made.cpu_profile, made.ddp_profile])
def test_a_healthy_job_has_no_finding(make: Any) -> None:
    assert made.codes(make()) == []


@pytest.mark.parametrize("make", [made.profile, made.cpu_profile, made.ddp_profile])
@pytest.mark.parametrize(
    "field",
    [item.name for item in dataclasses.fields(Profile) if item.name not in ("command", "anatomy")],
)
def test_what_is_missing_claims_nothing(make: Any, field: str) -> None:
    default = next(item for item in dataclasses.fields(Profile) if item.name == field).default
    assert made.codes(made.changed(make(), **{field: default})) == []


@pytest.mark.parametrize("make", [made.profile, made.cpu_profile])
@pytest.mark.parametrize(
    "field",
    [
        item.name
        for item in dataclasses.fields(wire.LoopSeen)
        if item.default is not dataclasses.MISSING and item.name != "kind"
    ],
)
def test_what_was_not_watched_claims_nothing(make: Any, field: str) -> None:
    default = next(i for i in dataclasses.fields(wire.LoopSeen) if i.name == field).default
    assert made.codes(made.changed(make(), **{f"seen__{field}": default})) == []


def test_an_empty_step_is_no_error() -> None:
    empty = made.changed(made.profile(), anatomy=made.anatomy("cuda", {}))
    assert Severity.UNCHECKED not in {found.severity for found in diagnose_profile(empty)}
