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
