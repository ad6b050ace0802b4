"""No check of ceilings says anything of a healthy machine or of unknown facts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosing.ceilings.benched import HEALTHY, benched, giving
from flatout.diagnosing.diagnose import diagnose_benched
from flatout.nouns.finding import Severity
from machines import healthy
from machines.forgetting import forgotten


@pytest.mark.parametrize("name", sorted(healthy.HEALTHY))
def test_of_a_healthy_machine_nothing_is_said(name: str) -> None:
    machine = healthy.HEALTHY[name]()
    assert diagnose_benched(benched(machine), machine) == ()


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
