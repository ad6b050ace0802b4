"""A clock by which operations take as long as each other, however busy the machine is."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from flatout_agent.watch.profile import counting


@pytest.fixture(autouse=True)
def even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told depends on shares of the step's time: 100 microseconds for each operation."""
    ticks = itertools.count()
    clock = SimpleNamespace(thread_time=lambda: next(ticks) * 1e-4)
    monkeypatch.setattr(counting, "time", clock)
