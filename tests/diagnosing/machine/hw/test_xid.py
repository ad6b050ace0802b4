from __future__ import annotations

import pytest

from flatout.diagnosing.machine.hw import xid
from flatout.nouns.finding import Severity


@pytest.mark.parametrize("number", sorted(xid.MEANINGS))
def test_each_meaning_reads_well(number: int) -> None:
    known = xid.meaning(number)
    assert len(f"Xid {number}, 99,999 times: {known.title}") <= 100
    assert known.text.endswith(".")
    assert not known.title.endswith(".")


@pytest.mark.parametrize("number", sorted(xid.MEANINGS))
def test_severity_and_remedy_agree(number: int) -> None:
    known = xid.meaning(number)
    assert (known.severity is Severity.NOTE) == (known.remedy is xid.Remedy.PROGRAM)


def test_those_that_are_asked_for_most_are_known() -> None:
    common = {13, 31, 43, 45, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140}
    assert common <= set(xid.MEANINGS)


def test_an_unknown_number_is_not_guessed() -> None:
    unknown = xid.meaning(998)
    assert unknown.remedy is xid.Remedy.LOOK
    assert "998" in unknown.text
