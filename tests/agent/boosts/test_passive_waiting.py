"""passive-waiting: variables set before the start, checked inside; threads that really sleep."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout_agent.boost import Declined, Switch
from flatout_agent.boosts import passive_waiting as boost
from flatout_agent.job import Job
from flatout_agent.wire import JobFacts

SOURCE = Path(__file__).resolve().parents[3] / "src"
FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu", cores=8, threads=8)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in boost.NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def as_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in boost.environment(FACTS, {}).items():
        monkeypatch.setenv(name, value)


def test_the_variables_are_set_before_the_start() -> None:
    assert boost.BOOST.switch is Switch.START
    assert boost.environment(FACTS, {})["OMP_WAIT_POLICY"] == "PASSIVE"
    some = boost.environment(FACTS, {"spins": 1000})
    assert (some["GOMP_SPINCOUNT"], some["KMP_BLOCKTIME"]) == ("1000", "1")
    assert boost.environment(dataclasses.replace(FACTS, threads=1), {}) == {}


CHILD = """
import resource, sys, threading, time
import torch
from flatout_agent.boosts import passive_waiting
from flatout_agent.job import Job

applied = passive_waiting.apply(Job(), torch, {}) if sys.argv[1] == "on" else None
torch.set_num_threads(2)
x = torch.ones(1 << 18)

def used():
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime

spent = 0.0
for _ in range(40):
    x + 1  # then the other threads wait for the next operation, and turn in a loop
    before = used()
    time.sleep(0.01)
    spent += used() - before
print(spent, applied.engaged() if applied else None)
"""


def _child(switch: str, **environ: str) -> tuple[float, str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, switch],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spent, _, told = done.stdout.strip().partition(" ")
    return float(spent), told


@pytest.mark.thorough
@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="GNU's OpenMP turns in a loop where there is a core for each thread",
)
@pytest.mark.slow
def test_waiting_threads_take_no_cpu_time() -> None:
    usual, _ = _child("off", OMP_WAIT_POLICY="ACTIVE")
    spent, told = _child("on", **boost.environment(FACTS, {}))
    assert told == "(True, '2 threads sleep while they wait')"
    assert spent < usual / 2


def test_apply_changes_nothing(as_ordered: None) -> None:
    before = dict(os.environ), torch.get_num_threads()
    applied = boost.apply(Job(), torch, {})
    applied.undo()
    assert (dict(os.environ), torch.get_num_threads()) == before


def test_some_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in boost.environment(FACTS, {"spins": 1000}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Declined, match="GOMP_SPINCOUNT is set to 1000 already"):
        boost.apply(Job(), torch, {"spins": 0})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    applied = boost.apply(Job(), torch, {"spins": 1000})
    assert applied.engaged() == (True, "8 threads sleep after 1000 spins")


def test_one_thread_does_not_wait(as_ordered: None) -> None:
    applied, before = boost.apply(Job(), torch, {}), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert applied.engaged() == (False, "there is only one compute thread")
    finally:
        torch.set_num_threads(before)


def test_declined_without_the_environment() -> None:
    with pytest.raises(Declined, match="OMP_WAIT_POLICY is not set: that must be done before"):
        boost.apply(Job(), torch, {})


def test_declined_where_another_way_is_chosen(
    as_ordered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    with pytest.raises(Declined, match="GOMP_SPINCOUNT is set to 1000 already"):
        boost.apply(Job(), torch, {})


def test_declined_without_openmp(as_ordered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.openmp, "is_available", lambda: False)
    with pytest.raises(Declined, match="without OpenMP"):
        boost.apply(Job(), torch, {})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"device": "cuda"}, "the model is on cuda"),
        ({"threads": 1}, "one compute thread"),
    ],
)
def test_applies(change: dict[str, Any], reason: str | None) -> None:
    said = boost.applies(dataclasses.replace(FACTS, **change), {})
    assert said is None if reason is None else reason in (said or "")


@pytest.mark.parametrize("name", boost.NAMES)
def test_the_users_own_choice_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "ACTIVE")
    assert boost.applies(FACTS, {}) == f"{name} is set already"
    assert boost.environment(FACTS, {}) == {}


def test_promise_and_by_hand() -> None:
    crowded = dataclasses.replace(FACTS, cores=2)
    assert boost.promise(crowded, {}) == 1.3
    assert boost.promise(FACTS, {}) == 1.01
    assert "export OMP_WAIT_POLICY=PASSIVE" in boost.by_hand(FACTS, {})
