"""Amdahl's law: a part that is faster, and what that is worth to the whole."""

from __future__ import annotations

import math

import pytest

from flatout.nouns import amdahl


def test_something_remains() -> None:
    assert amdahl.speedup(100.0, 100.0, least=0.02) == pytest.approx(50.0)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_speedup_leaves_nothing_to_say(factor: float) -> None:
    assert amdahl.remaining(100.0, factor) is None


def test_the_law_turned_round() -> None:
    ratio = amdahl.speedup(80.0, 30.0)
    assert amdahl.remaining(80.0, ratio) == pytest.approx(50.0)
    assert amdahl.saved(80.0, ratio) == pytest.approx(30.0)
