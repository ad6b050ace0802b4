"""How times are taken: against a clock that obeys, and against the real one."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from flatout_programs.kernels import timing
from flatout_programs.kernels.timing import Clock, median_s


class Obeying:
    """A clock that gives the times it was told, per call, and remembers the calls."""

    batch_s = 0.01

    def __init__(self, times: list[float]) -> None:
        self._times, self.batches, self.now_s = times, [], 0.0

    def seconds(self, action: timing.Action, calls: int) -> float:
        one_s = self._times[min(len(self.batches), len(self._times) - 1)]
        self.batches.append(calls)
        self.now_s += 0.001
        return one_s * calls


def test_the_median_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = [1.0, 0.001]  # loads its code; tells how many calls are a batch
    warming = [0.004, 0.003, 0.002]
    clock = Obeying([*cold, *warming, *[0.001] * 2, 0.0005, 0.009, *[0.001] * 100])
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now_s)
    found = median_s(clock, lambda call: None, 0.05)
    assert found == pytest.approx(0.001)
    assert clock.batches[:2] == [1, 1]
    assert set(clock.batches[2:]) == {6}  # an eighth of the time that there is


def test_what_takes_longer_than_there_is_time_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Obeying([3.0])
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now_s)
    assert median_s(clock, lambda call: None, 0.001) == 3.0
    assert len(clock.batches) <= 2 + timing.FEWEST


def test_calls_are_counted_through_so_that_operands_rotate() -> None:
    seen: list[int] = []
    median_s(Clock(torch, "cpu"), seen.append, 0.01)
    assert seen == list(range(len(seen)))
    assert len(seen) > 1


def test_the_real_clock() -> None:
    assert median_s(Clock(torch, "cpu"), lambda _: time.sleep(0.004), 0.2) >= 0.004


class FakeCuda:
    """torch.cuda as far as the clock needs it; the device is busy for 2 ms a call."""

    def __init__(self) -> None:
        self.now_ms, self.waited = 0.0, 0

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802 - torch's name
        assert enable_timing
        return FakeEvent(self)

    def device(self, name: str) -> Any:
        assert name == "cuda:1"
        return memoryview(b"")  # something that can stand in a `with`


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.at_ms = cuda, -1.0

    def record(self) -> None:
        self.at_ms = self.cuda.now_ms

    def synchronize(self) -> None:
        self.cuda.waited += 1

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.cuda.waited, "the end must be waited for"
        return end.at_ms - self.at_ms


def test_on_a_device_its_own_events_tell_the_time() -> None:
    cuda = FakeCuda()
    clock = Clock(type("FakeTorch", (), {"cuda": cuda}), "cuda:1")

    def act(_: int) -> None:
        cuda.now_ms += 2.0
        time.sleep(0.005)  # the host's time does not count

    assert clock.seconds(act, 3) == pytest.approx(0.006)


@pytest.mark.gpu
def test_events_agree_with_the_host_on_a_real_device() -> None:
    values = torch.randn(4096, 4096, device="cuda")
    found = median_s(Clock(torch, "cuda:0"), lambda _: values @ values, 0.3)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        values @ values
    torch.cuda.synchronize()
    assert found == pytest.approx((time.perf_counter() - began) / 20, rel=0.3)
