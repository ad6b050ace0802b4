"""Whatever a profile holds or lacks, no check fails, and no cure saves less than nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from flatout.diagnosing.diagnose import diagnose_profile
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Profile
from flatout_agent import wire


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
