from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from flatout_train.step.ways_to_fit import TIMED, WARM_UP, CallTimer, Contest, Way


@given(rows=st.integers(1, 100), least=st.floats(0.1, 200), width=st.integers(1, 3))
def test_the_fewest_parts_whose_largest_is_not_known_to_be_too_large(
    rows: int, least: float, width: int
) -> None:
    way, load = Way(None, smallest_failing=least), float(rows * width)
    parts = way.parts(load, rows)
    sizes = [rows * (part + 1) // parts - rows * part // parts for part in range(parts)]
    assert way.share(load, rows, parts) == pytest.approx(max(sizes) * width)
    assert parts == rows or max(sizes) * width < least
    assert parts == 1 or way.share(load, rows, (parts + 1) // 2) >= least


def run(way: Way, seconds: float, calls: int = WARM_UP + TIMED) -> None:
    for call in range(calls):
        slow = 100.0 if call < WARM_UP else seconds
        way.add_call(lambda slow=slow: slow, 2.0)  # type: ignore[misc]


def test_a_device_that_is_still_at_it_is_not_waited_for() -> None:
    contest = Contest([first := Way(None, smallest_failing=9.0), second := Way("all")])
    answers: list[float | None] = [None]
    for _ in range(WARM_UP + TIMED):
        assert contest.current(16.0, 16) is first
        first.add_call(lambda: answers[0], 16.0)
    assert contest.current(16.0, 16) is first  # one call more than is counted, instead of a wait
    answers[0] = 1.0
    assert contest.current(16.0, 16) is second
    run(second, 0.1)
    assert contest.current(16.0, 16) is second
    assert contest.fastest is second


def test_events_of_a_device_are_read_when_they_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        made: ClassVar[list[Any]] = []
        done = False

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.made.append(self)

        def record(self, stream: Any) -> None:
            assert stream == ("current of", device)
            self.recorded = True

        def query(self) -> bool:
            return self.done

        def elapsed_time(self, end: Any) -> float:
            assert end.recorded
            assert end is self.made[1]
            return 250.0

    device = torch.device("cuda", 1)
    module = SimpleNamespace(Event=Event, current_stream=lambda device: ("current of", device))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    seconds = CallTimer(device).start()()
    assert seconds() is None
    Event.done = True
    assert seconds() == 0.25


def test_a_device_that_shows_no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS: its events take no stream."""
    event = SimpleNamespace(record=lambda: None, query=lambda: True, elapsed_time=lambda end: 250.0)
    module = SimpleNamespace(Event=lambda enable_timing: event)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert CallTimer(torch.device("mps")).start()()() == 0.25
