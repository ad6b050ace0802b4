"""What other programs use of the cores is told early, and only where it matters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flatout.probing import neighbours
from flatout_agent import limits


@pytest.mark.parametrize(
    ("busy", "line"),
    [
        (None, None),
        (0.9, None),
        (1.44, "other programs use 1.4 of 4 cores: answers will be rough"),
    ],
)
def test_only_much_is_told(
    busy: float | None, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "busy_cores", lambda: busy)
    monkeypatch.setattr(limits, "usable_cores", lambda: 4)
    assert neighbours.told() == line


def test_seconds_in_use_become_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5])
    time = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr(neighbours, "time", time)
    seconds = iter([{"cpu_busy_s": 7.0}, {"cpu_busy_s": 7.75}])
    assert neighbours.busy_cores(lambda: next(seconds)) == 1.5


def test_what_cannot_be_read_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LOOK_S", 0.0)
    assert neighbours.busy_cores(dict) is None


@pytest.mark.parametrize(
    ("busy_s", "ours_s", "disturbed"),
    [
        (8.0, 7.9, False),  # all cores are ours
        (8.0, 6.0, True),
        (4.0, 2.0, False),  # others have cores of their own
        (None, 6.0, False),
    ],
)
def test_others_disturb_where_no_core_is_left(
    busy_s: float | None, ours_s: float, disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seconds on four cores."""
    clock, ours = iter([10.0, 12.0]), iter([1.0, 1.0 + ours_s])
    known = {} if busy_s is None else {"cpu_busy_s": 100.0 + busy_s}
    counters = iter([{"cpu_busy_s": 100.0}, known])
    monkeypatch.setattr(neighbours, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(neighbours, "_of_machine", lambda: next(counters))
    monkeypatch.setattr(limits, "usable_cores", lambda: 4)
    assert neighbours.Stretch(lambda: next(ours)).disturbed() is disturbed
