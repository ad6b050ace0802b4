from __future__ import annotations

import dataclasses

import pytest

from diagnosing.ceilings.benched import benched, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, cpu_server

ID = "device-not-expected"


@pytest.mark.parametrize("name", ["a100", "A100-SXM", "NVIDIA A100-SXM4-80GB"])
def test_silent_where_it_is_the_one(name: str) -> None:
    found = dataclasses.replace(benched(a100()), expected=name)
    assert findings(ID, found, a100()) == ()


def test_another_one() -> None:
    found = dataclasses.replace(benched(a100()), expected="h100")
    finding = only(ID, found, a100())
    assert (finding.code, finding.severity) == ("HW041", Severity.ERROR)
    assert finding.title.startswith("expected h100, found NVIDIA A100")


def test_none_at_all() -> None:
    found = dataclasses.replace(benched(cpu_server()), expected="h100")
    assert "no GPU" in only(ID, found, cpu_server()).title


def test_silent_where_nothing_is_expected() -> None:
    assert findings(ID, benched(a100()), a100()) == ()
