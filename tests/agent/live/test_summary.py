"""Where a live tuning stands, for the host."""

from __future__ import annotations

import types

import pytest

from flatout_agent.live.machinery import State
from flatout_agent.live.summary import Spent, summarise


def session(written_s: float, gain: float):
    """What the summary asks of a session."""
    state = State(gains={"bf16-autocast": gain}, written_s=written_s)
    machinery = types.SimpleNamespace(steps=lambda: 500, units_per_step=lambda: 1.0)
    budget = types.SimpleNamespace(lost_s=7.0, lost_late_s=2.0)
    return types.SimpleNamespace(state=state, machinery=machinery, budget=budget)


def test_what_is_saved_counts_from_the_first_faster_step_on() -> None:
    spent = Spent()
    for seconds in [0.1] * 10 + [0.5] * 2 + [0.05] * 100:  # as written, the guard, faster
        spent.add(seconds, 0.1)
    told = summarise(session(0.1, 2.0), spent, 300, None, False)
    assert told.saved_s == pytest.approx(-2 * 0.4 + 100 * 0.05 + 300 * 0.05)
    assert (told.lost_s, told.lost_late_s) == (7.0, 2.0)


def test_nothing_is_saved_while_the_program_as_written_is_unknown() -> None:
    told = summarise(session(float("nan"), 1.0), Spent(3, 9.0), 0, None, False)
    assert (told.saved_s, told.written_ms) == (0.0, None)


def test_what_an_accelerator_is_waited_for_is_the_units_own_time() -> None:
    """Ten units of 1 ms on the host and 50 ms on the device, as written: nothing is saved."""
    spent = Spent()
    spent.add(9.0, float("nan"))
    spent.waited(9.0, float("nan"))  # before it is known what they take
    for _ in range(10):
        spent.add(0.001, 0.05)
    spent.waited(10 * 0.049, 0.05)
    assert summarise(session(0.05, 1.0), spent, 0, None, False).saved_s == pytest.approx(0.0)
