from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import gc_pause as boost
from flatout_agent.job import Job


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collector_as_found() -> Iterator[None]:
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    gc.set_threshold(700, *thresholds[1:])
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """As in a script that has frozen nothing: the tests' own freeze would stand."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    if frozen:
        gc.freeze()


@pytest.fixture
def paused() -> Iterator[tuple[Job, Applied]]:
    job = Job()
    applied = boost.apply(job, torch, {})
    yield job, applied
    applied.undo()


def _steps(job: Job, count: int) -> None:
    for _ in range(count):
        for callback in job.step_callbacks:
            callback()


def _collections(generation: int) -> int:
    return gc.get_stats()[generation]["collections"]


def test_no_collection_starts_inside_a_step(paused: tuple[Job, Applied]) -> None:
    before = _collections(0)
    held = [[index] for index in range(20_000)]
    assert _collections(0) == before, len(held)


def test_cycles_are_freed_between_steps(paused: tuple[Job, Applied]) -> None:
    job, applied = paused
    _steps(job, 1)
    garbage = weakref.ref(Node())
    _steps(job, boost.YOUNG_EVERY - 2)
    assert garbage() is not None
    assert applied.engaged()[0] is False
    _steps(job, 1)
    assert garbage() is None
    assert applied.engaged() == (True, "collected after every 10 steps")


def test_what_was_made_before_the_first_step_is_looked_at_once(
    paused: tuple[Job, Applied],
) -> None:
    """Else the tenth step, early in a measurement, would take 0.3 s longer."""
    job, _ = paused
    loaded = [[index] for index in range(1000)]
    _steps(job, 1)
    old = {id(each) for each in gc.get_objects(generation=2)}
    assert all(id(each) in old for each in loaded)


def test_old_cycles_are_freed_by_the_seldom_full_collection(paused: tuple[Job, Applied]) -> None:
    job, _ = paused
    node = Node()
    _steps(job, 1)  # from now on it is old
    garbage = weakref.ref(node)
    del node
    _steps(job, boost.FULL_EVERY - 2)
    assert garbage() is not None
    _steps(job, 1)
    assert garbage() is None


@pytest.mark.usefixtures("unfrozen")
def test_undo_restores_thresholds_and_frozen_objects() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    job = Job()
    applied = boost.apply(job, torch, {})
    assert gc.get_threshold() != before[0]
    assert gc.get_freeze_count() > 10_000
    applied.undo()
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
    assert job.step_callbacks == []


def test_what_the_script_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        boost.apply(Job(), torch, {}).undo()
        # Not quite the same: frozen objects that nobody holds any more go at once.
        assert 0.99 * frozen < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with pytest.raises(Declined, match="switched off"):
        boost.apply(Job(), torch, {})


def test_thresholds_that_the_script_set_stay() -> None:
    gc.set_threshold(5000, 10, 10)
    with pytest.raises(Declined, match="thresholds are set already"):
        boost.apply(Job(), torch, {})


@pytest.mark.slow
def test_a_script_that_takes_over_later_is_left_alone(paused: tuple[Job, Applied]) -> None:
    job, applied = paused
    gc.set_threshold(5000, 10, 10)
    before = _collections(1)
    _steps(job, boost.YOUNG_EVERY)
    assert _collections(1) == before
    assert applied.engaged() == (False, "the script sets the collector itself")
    applied.undo()
    assert gc.get_threshold()[0] == 5000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.usefixtures("unfrozen")
def test_forked_children_collect_what_is_theirs() -> None:
    applied = boost.apply(Job(), torch, {})
    loaded = [[index] for index in range(1000)]
    child = os.fork()
    if child == 0:
        usual = gc.get_threshold()[0] == 700
        shared = {id(each) for each in gc.get_objects()}
        left_alone = not any(id(each) in shared for each in loaded)
        garbage = weakref.ref(Node())
        gc.collect(0)
        os._exit(0 if usual and left_alone and garbage() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.get_threshold()[0] == boost.PAUSED[0]
    applied.undo()
    assert gc.get_freeze_count() == 0
