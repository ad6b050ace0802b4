from __future__ import annotations

import pytest

from flatout.diagnosing.machine.hw import xid
from flatout.nouns.finding import Severity


@pytest.mark.parametrize("number", sorted(xid.MEANINGS))
def test_severity_and_remedy_agree(number: int) -> None:
    known = xid.meaning(number)
    assert (known.severity is Severity.NOTE) == (known.remedy is xid.Remedy.PROGRAM)


def test_an_unknown_number_is_not_guessed() -> None:
    unknown = xid.meaning(998)
    assert unknown.remedy is xid.Remedy.LOOK
    assert "998" in unknown.text
