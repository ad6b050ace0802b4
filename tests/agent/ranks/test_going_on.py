"""What a resume says of random numbers; that they go on is in `commands/test_run_resumed.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flatout_agent.ranks import going_on
from flatout_agent.ranks.own_numbers import OwnNumbers

OF_TWO = {"size": 2, "root": 5, "calls": 3, "cut": {"kind": True}}


class Ranks(SimpleNamespace):
    """As much of the regions as a checkpoint sees."""

    def go_on(self, *taken: Any) -> None:
        self.taken = taken


def ranks(size: int) -> Any:
    group = SimpleNamespace(size=size)
    return Ranks(group=group, numbers=OwnNumbers(0), cut_kinds={}, taken=None)


@pytest.mark.parametrize(
    ("size", "saved", "said"),
    [
        (0, None, ""),
        (0, {**OF_TWO, "calls": 0}, ""),
        (0, OF_TWO, "by 2 ranks, and one process resumed from it"),
        (2, OF_TWO, ""),
        (4, OF_TWO, "by 2 ranks, and 4 ranks resumed from it"),
        (4, None, "by one process, and 4 ranks resumed from it"),
    ],
)
def test_another_number_of_ranks_is_told_where_random_numbers_were_drawn(
    monkeypatch: pytest.MonkeyPatch, size: int, saved: dict[str, Any] | None, said: str
) -> None:
    regions = ranks(size) if size else None
    monkeypatch.setattr(going_on, "_regions", regions)
    told = going_on.resume(saved)
    assert said in told
    assert bool(told) == bool(said)
    if regions is not None and saved is not None:
        assert regions.taken == (5, 3, {"kind": True})


def test_what_is_saved_is_what_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(going_on, "_regions", None)
    assert going_on.state() is None
    regions = ranks(2)
    regions.numbers.root, regions.numbers.calls = 5, 3
    regions.cut_kinds["kind"] = True
    monkeypatch.setattr(going_on, "_regions", regions)
    assert going_on.state() == OF_TWO
