"""The ring of a process: what is written is read once, whole, in order."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.running.one.ring import Ring, rings, same_process, ticks_of
from flatout_agent.tell.pulse import Pulse
from flatout_agent.wire import pulse as layout


@pytest.fixture
def pulse(tmp_path: Path) -> Pulse:
    return Pulse(str(tmp_path))


def test_each_step_is_read_once(pulse: Pulse) -> None:
    ring = Ring(Path(pulse.path))
    assert ring.new() == []
    now = time.perf_counter()
    pulse.flags |= layout.LOSS_READ | layout.SAVED
    pulse.step(1, now, wait_s=0.25, samples=32, loss=2.5)
    pulse.step(2, now + 0.5, loss=7.0)
    first, second = ring.new()
    assert (first.step, first.samples, first.loss) == (1, 32, 2.5)
    assert first.wait_s == 0.25
    assert first.flags & layout.SAVED
    assert abs(first.time_s - time.time()) < 60
    assert (second.duration_s, second.loss, second.samples) == (0.5, None, None)
    assert ring.new() == []
    pulse.step(3, now + 1)
    assert [step.step for step in ring.new()] == [3]


def test_what_was_written_over_is_counted(pulse: Pulse) -> None:
    ring = Ring(Path(pulse.path))
    for step in range(1, layout.SLOTS + 51):
        pulse.step(step, float(step))
    steps = ring.new()
    assert [step.step for step in steps] == list(range(51, layout.SLOTS + 51))
    assert ring.lost == 50


def test_what_was_written_over_before_it_was_opened_is_not_counted(pulse: Pulse) -> None:
    for step in range(1, layout.SLOTS + 51):
        pulse.step(step, float(step))
    ring = Ring(Path(pulse.path))
    assert len(ring.new()) == layout.SLOTS
    assert ring.lost == 0
    for step in range(layout.SLOTS + 51, 2 * layout.SLOTS + 54):
        pulse.step(step, float(step))
    assert len(ring.new()) == layout.SLOTS
    assert ring.lost == 3


@settings(max_examples=60, deadline=None)
@given(losses=st.lists(st.floats(), min_size=1, max_size=20))
def test_any_loss_comes_through(
    losses: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pulse = Pulse(str(tmp_path_factory.mktemp("rings")))
    for index, loss in enumerate(losses):
        pulse.flags |= layout.LOSS_READ
        pulse.step(index + 1, float(index), loss=loss)
    read = [step.loss for step in Ring(Path(pulse.path)).new()]
    for loss, seen in zip(losses, read, strict=True):
        assert seen is not None
        if math.isnan(loss):
            assert math.isnan(seen)
        elif abs(loss) > 3.5e38:
            assert seen == math.copysign(math.inf, loss)
        else:
            assert seen == pytest.approx(loss, rel=1e-6, abs=1e-37)


def test_a_reader_beside_the_writer_sees_whole_steps_alone(pulse: Pulse) -> None:
    ring, over = Ring(Path(pulse.path)), threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not over.is_set():
            for step in ring.new():
                assert step.samples == step.step
                assert step.wait_s == float(step.step)
                seen.append(step.step)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(1, 30_000):
        pulse.step(step, float(step), wait_s=float(step), samples=step)
    over.set()
    reader.join()
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("text", [b"", b"x" * 100, b"\0" * layout.PULSE_BYTES])
def test_another_file_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "0-1.ring").write_bytes(text)
    with pytest.raises(ValueError, match="pulse"):
        Ring(tmp_path / "0-1.ring")


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, layout.PULSE_BYTES - 9), junk=st.binary(min_size=1, max_size=8))
def test_damage_is_left_out(
    place: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pulse = Pulse(str(tmp_path_factory.mktemp("rings")))
    for step in range(1, 40):
        pulse.step(step, float(step))
    path = Path(pulse.path)
    ring = Ring(path)
    data = path.read_bytes()
    path.write_bytes(data[:place] + junk + data[place + len(junk) :])
    for step in ring.new():
        assert math.isfinite(step.time_s)
        assert step.duration_s >= 0


def test_its_writer_is_known_by_its_start(pulse: Pulse) -> None:
    ring = Ring(Path(pulse.path))
    assert ring.writer_alive() is True
    assert not ring.ended
    pulse.end()
    ring.new()
    assert ring.ended
    ticks = ticks_of(os.getpid())
    assert ticks is not None
    assert not same_process(os.getpid(), ticks + 1, time.time()) or not ticks
    assert not same_process(0, 0, time.time())


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_later_process_of_the_same_number_is_another(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no process can tell its start, the writer's is known to be before the ring's."""
    monkeypatch.setattr(sys, "platform", system)
    ring = Ring(Path(Pulse(str(tmp_path)).path))
    assert ring.writer_alive() is True
    began_s = psutil.Process().create_time()
    assert same_process(os.getpid(), 0, began_s + 3600)
    assert not same_process(os.getpid(), 0, began_s - 3600)
    assert not same_process(2**22 - 7, 0, time.time())


def test_two_of_one_number_get_a_ring_each(tmp_path: Path) -> None:
    first, second = Pulse(str(tmp_path)), Pulse(str(tmp_path))
    first.step(1, 1.0)
    assert first.path != second.path
    assert Ring(Path(second.path)).new() == []
    assert [path.suffix for path in rings(tmp_path)] == [".ring", ".ring"]
    assert rings(tmp_path / "none") == []
