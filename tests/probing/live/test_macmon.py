"""macmon, played by a program that prints what it prints: read, restarted, ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.probing.live.macmon import Macmon, figures
from probing.live.fake_macmon import NEW, OLD, macmon, pids

LIMIT_S = 120.0
KNOWN = {
    "utilization": 0.75,
    "scaled": 0.25,
    "clock_mhz": 461.0,
    "power_w": 12.5,
    "temperature_c": 36.95167,
    "fan": 0.5,
}


def until(found: Callable[[], Any]) -> Any:
    """What is found, sooner or later."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def test_figures() -> None:
    assert figures(json.dumps(NEW)) == KNOWN
    assert figures(json.dumps(OLD)) == {"scaled": 0.25, "clock_mhz": 461.0, "power_w": 12.5}


@pytest.mark.parametrize(
    "line", ["", "[]", "null", "{", "1e999", '{"gpu_power": true}', "[" * 9999]
)
def test_lines_that_tell_nothing(line: str) -> None:
    assert figures(line) == {}


@given(
    st.dictionaries(
        st.sampled_from([*NEW, "gpu_usage"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
            max_leaves=5,
        ),
    )
)
def test_odd_lines(document: dict[str, Any]) -> None:
    found = figures(json.dumps(document))
    assert all(0 <= value < 1e15 for value in found.values())
    assert all(found.get(name, 0) <= 1 for name in ("utilization", "scaled", "fan"))


def test_it_is_read_while_it_runs_and_ends_with_its_reader(tmp_path: Path) -> None:
    reader = Macmon(macmon(tmp_path, ["not JSON", OLD, NEW]))
    try:
        assert until(lambda: reader.figures(100.0)) in (KNOWN, figures(json.dumps(OLD)))
        assert until(lambda: reader.figures(100.0) == KNOWN)
        assert reader.figures(105.0) == KNOWN
        assert reader.figures(105.1) == {}  # it has told nothing for too long
        (pid,) = pids(tmp_path)
        assert psutil.pid_exists(pid)
    finally:
        reader.close()
    assert not psutil.pid_exists(pid)
    assert reader.figures(1000.0) == {}
    assert pids(tmp_path) == [pid]
    reader.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_one_that_will_not_end(tmp_path: Path) -> None:
    reader = Macmon(macmon(tmp_path, [NEW], "stubborn"))
    try:
        until(lambda: reader.figures(0.0))  # by then it does not hear the signal
    finally:
        reader.close()
    assert not psutil.pid_exists(pids(tmp_path)[0])


def test_one_that_ends_is_started_again_a_minute_later(tmp_path: Path) -> None:
    reader = Macmon(macmon(tmp_path, [NEW], "ends"))
    try:
        until(lambda: reader.figures(100.0))
        assert reader._thread is not None
        reader._thread.join(LIMIT_S)
        assert reader.figures(159.0) == {}
        assert len(pids(tmp_path)) == 1
        until(lambda: reader.figures(160.0))
        assert len(pids(tmp_path)) == 2
    finally:
        reader.close()


def test_none_is_installed() -> None:
    for command in (None, ("/nowhere/macmon", "pipe")):
        reader = Macmon(command)
        assert reader.figures(0.0) == {}
        reader.close()
