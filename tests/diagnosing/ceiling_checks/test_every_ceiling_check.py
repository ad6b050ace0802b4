"""Every check of ceilings is whole, and says nothing of a healthy machine or of unknown facts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from check_pages import assert_whole_page
from diagnosing.benched import HEALTHY, benched, giving
from flatout.diagnosing import ceiling_checks, checks, pages
from flatout.diagnosing.diagnose import diagnose_benched
from flatout.nouns.finding import Severity
from machines import healthy
from machines.forgetting import forgotten

NAMES = ceiling_checks.names()
HERE = Path(__file__).parent


def test_the_folder_is_the_table() -> None:
    files = {path.stem for path in Path(ceiling_checks.__file__).parent.glob("*.py")}
    assert {name.replace("-", "_") for name in NAMES} == files - {"__init__"}
    assert len(NAMES) >= 15


def test_codes_are_unique_and_follow_those_of_the_machine() -> None:
    codes = [ceiling_checks.load(name).CHECK.code for name in NAMES]
    known = [checks.load(name).CHECK.code for name in checks.names()]
    assert len(set(codes)) == len(codes)
    assert not set(codes) & set(known)
    assert min(codes) > max(code for code in known if code.startswith("HW"))


@pytest.mark.parametrize("name", NAMES)
def test_page(name: str) -> None:
    assert_whole_page(ceiling_checks.load(name))
    assert pages.find(ceiling_checks.load(name).CHECK.code) is not None


@pytest.mark.parametrize("name", NAMES)
def test_has_a_test_file(name: str) -> None:
    assert (HERE / f"test_{name.replace('-', '_')}.py").is_file()


@pytest.mark.parametrize("name", sorted(healthy.HEALTHY))
def test_of_a_healthy_machine_nothing_is_said(name: str) -> None:
    machine = healthy.HEALTHY[name]()
    assert diagnose_benched(benched(machine), machine) == ()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["a100", "h100", "workstation", "container", "wsl", "rocm"]),
    st.integers(0, 2**32),
    st.sampled_from([0.1, 0.5, 0.95]),
    st.dictionaries(st.sampled_from(sorted(HEALTHY)), st.floats(0.0, 2.0)),
)
def test_no_check_fails_where_facts_are_missing(
    name: str, seed: int, share: float, shares: dict[str, float]
) -> None:
    whole = getattr(healthy, name)()
    found = benched(whole)
    for ceiling_id, part in shares.items():
        found = giving(found, ceiling_id, part)
    for item in diagnose_benched(found, forgotten(whole, Random(seed), share)):
        assert item.severity is not Severity.UNCHECKED, item.evidence
        assert "None" not in f"{item.title} {item.evidence} {item.cure.text} {item.cure.commands}"
        assert 10 <= len(item.title) <= 100
