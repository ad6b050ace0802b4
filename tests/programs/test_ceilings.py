"""The program in the user's interpreter: what it tells, and what a fault costs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_programs import ceilings as program
from flatout_programs.kernels import sizes, stopwatch, timing
from flatout_programs.kernels.kernel import CeilingKernel, Setup, Slice
from flatout_programs.tell import MARK
from probing.fake_packages import bare

FILE = Path(program.__file__)


def orders(**changes: Any) -> dict[str, Any]:
    whole = {"quick": True, "wanted": [], "devices": [], "done": [], "budget_s": 1.0}
    return {**whole, **changes}


def told(python: str, **changes: Any) -> list[dict[str, Any]]:
    command = [python, str(FILE), json.dumps(orders(**changes))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    return [json.loads(line.partition(MARK)[2]) for line in lines]


@pytest.mark.thorough
@pytest.mark.slow
def test_one_ceiling_from_a_real_process() -> None:
    said = told(sys.executable, wanted=["launch-latency", "matmul-cpu-fp32"], budget_s=20.0)
    assert said[0]["torch"] == torch.__version__
    assert {"device": "cpu"} in said[0]["devices"]
    assert ["matmul-cpu-fp32", "cpu"] in said[1]["planned"]
    assert any("point" in one for one in said)
    assert said[-1] == {"done": True}


def test_without_torch(tmp_path: Path) -> None:
    (said,) = [one for one in told(bare(tmp_path)) if "error" in one]
    assert said["torch_missing"] is True


def measured(*kernels: CeilingKernel, budget_s: float = 5.0) -> tuple[list[dict[str, Any]], bool]:
    said: list[dict[str, Any]] = []
    here = Setup(torch, quick=True)
    finished = program._measure(here, list(kernels), budget_s, said.append)
    return said, finished


def kernel(name: str, curve: Any, **facts: Any) -> CeilingKernel:
    return CeilingKernel(name, name, "cpu", "GB/s", curve, **facts)


def test_an_error_costs_its_own_row() -> None:
    def fails(_: Any) -> Any:
        yield "small", 1.0
        raise MemoryError("2 GiB")

    said, finished = measured(
        kernel("fails", fails), kernel("works", lambda _: iter([("a", 2.0), ("b", 3.0)]))
    )
    assert finished
    ends = [one for one in said if "end" in one]
    assert ends == [
        {"end": "fails", "note": "MemoryError: 2 GiB"},
        {"end": "works", "note": ""},
    ]
    assert [one["point"] for one in said if "point" in one] == [
        ["small", 1.0],
        ["a", 2.0],
        ["b", 3.0],
    ]


def test_what_cannot_be_measured_says_why() -> None:
    said, _ = measured(kernel("it", lambda _: iter(()), impossible="no decoder"))
    assert said[-1] == {"end": "it", "note": "no decoder"}


def test_when_the_time_is_overdrawn_the_rest_is_left() -> None:
    said, finished = measured(kernel("late", lambda _: iter([("a", 1.0)])), budget_s=-10.0)
    assert finished
    assert said[-1] == {"end": "late", "note": "not measured: out of time"}


def test_time_is_shared_by_weight_and_the_rest_handed_on(clock: Clock) -> None:
    seconds: list[float] = []

    def curve(time_slice: Any) -> Any:
        seconds.append(time_slice.seconds)
        yield "a", 1.0

    measured(*(kernel(str(n), curve, weight=0.25) for n in range(4)), budget_s=0.4)
    assert seconds[0] == pytest.approx(0.1)
    assert all(one <= 0.25 for one in seconds)
    assert seconds[-1] == 0.25  # at most a second for weight 1


def test_a_family_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout_programs.kernels import memory

    def broken(here: Setup) -> Any:
        raise RuntimeError("no driver")

    monkeypatch.setattr(memory, "kernels", broken)
    said: list[dict[str, Any]] = []
    found = program._kernels(Setup(torch, quick=True), said.append)
    assert said == [{"lost": "memory", "note": "RuntimeError: no driver"}]
    assert any(one.id == "matmul-cpu-fp32" for one in found)


class Clock:
    """The time as this test tells it: it passes in what is measured and prepared alone."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In place of the real one in all that shares out the time."""
    fake = Clock()
    for module in (program, stopwatch, timing):
        monkeypatch.setattr(module, "time", fake)
    return fake


def listed(clock: Clock, count: int, first_use_s: float = 0.0, least_s: float = 0.0) -> Any:
    """(kernels, the seconds that each was given); each needs `least_s` at least."""
    given: dict[str, float] = {}

    def curve(name: str) -> Callable[[Any], Any]:
        def measure(time_slice: Any) -> Any:
            with stopwatch.preparing():
                clock.now_s += first_use_s
            given[name] = time_slice.remaining_s()
            clock.now_s += max(given[name], least_s)
            yield "a", 1.0

        return measure

    names = [*program.BY_VALUE, *(f"other-{n}" for n in range(count - len(program.BY_VALUE)))]
    # In the order of files and tables, which is none of value.
    return [kernel(name, curve(name)) for name in sorted(names)], given


def ran(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, kernels: Any, start_s: float = 0.0
) -> tuple[list[str], list[str]]:
    """Ids in the order in which they began, and those that were left out."""

    def planned(setup: Setup, tell: Any) -> Any:
        clock.now_s += start_s  # as the import of torch or torchvision
        return kernels

    monkeypatch.setattr(program, "_kernels", planned)
    said: list[dict[str, Any]] = []
    assert program.run(orders(budget_s=12.0), said.append)
    begun = [one["begin"]["id"] for one in said if "begin" in one]
    lost = [one["end"] for one in said if one.get("note") == "not measured: out of time"]
    return begun, lost


def test_a_slow_start_and_slow_first_uses_leave_the_measurements_their_time(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    kernels, given = listed(clock, 37, first_use_s=0.45)
    _, lost = ran(monkeypatch, clock, kernels, start_s=60.0)
    assert lost == []
    assert len(given) == 37
    assert all(seconds == pytest.approx(12.0 / 37, rel=0.01) for seconds in given.values())


def test_the_warm_up_of_each_device_takes_none_of_the_time(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    given: list[float] = []

    def warm(_: Any, device: str, seconds: float) -> None:
        clock.now_s += 3.0  # its clocks rise
        with stopwatch.preparing():
            clock.now_s += 4.0  # a library is loaded

    def curve(time_slice: Any) -> Any:
        given.append(time_slice.remaining_s())
        clock.now_s += given[-1]
        yield "a", 1.0

    monkeypatch.setattr(sizes, "warm", warm)
    monkeypatch.setattr(timing, "wait", lambda torch, device: None)
    began = clock.now_s
    cards = ("mps", "cpu", "xpu:0", "mps", "xpu:0")
    kernels = [CeilingKernel(device, device, device, "GB/s", curve) for device in cards]
    measured(*kernels, budget_s=2.0)
    assert given == pytest.approx([0.4] * 5)
    assert clock.now_s - began == pytest.approx(2.0 + 2 * 7.0)


def test_the_most_valuable_comes_first_and_the_least_is_left_out(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    kernels, _ = listed(clock, 37, least_s=0.6)
    begun, lost = ran(monkeypatch, clock, kernels)
    first = len(program.BY_VALUE)
    assert begun[:first] == list(program.BY_VALUE)
    assert lost == begun[-len(lost) :]
    assert 0 < len(lost) < len(begun) - first


def test_first_uses_have_an_end(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    kernels, given = listed(clock, 37, first_use_s=5.0)
    began = clock.now_s
    begun, lost = ran(monkeypatch, clock, kernels)
    assert list(given) == begun[: len(given)]
    assert len(given) + len(lost) == 37
    assert clock.now_s - began < 12.0 + program.PREPARING_S[True] + 6.0


def test_a_further_device_comes_after_one_of_each_kind_and_before_the_rest() -> None:
    cards = ("cuda:0", "cuda:1")
    found = [
        CeilingKernel(name, name, device, "GB/s", lambda _: iter(()))
        for device in (*cards, "cpu")
        for name in ("other", "copy-device", "matmul-bf16")
    ]
    setup = SimpleNamespace(accelerators=cards)
    ordered = [(one.id, one.device) for one in program.by_value(found, setup)]
    assert ordered[0] == ("matmul-bf16", "cuda:0")
    assert [device for _, device in ordered[-5:]] == ["cuda:1"] * 3 + ["cuda:0", "cpu"]


def test_the_first_call_of_a_kernel_takes_none_of_its_time(clock: Clock) -> None:
    """It loads cuDNN or chooses an algorithm."""
    calls: list[int] = []

    def seconds(_: Any, count: int) -> float:
        clock.now_s += 0.01 * count if calls else 3.0
        calls.append(count)
        return 0.01 * count

    time_slice = Slice(1.0)
    device = SimpleNamespace(batch_s=0.02, seconds=seconds)
    assert timing.median_s(device, lambda _: None, 1.0) == pytest.approx(0.01)
    assert sum(calls[1:]) >= 90  # a whole second's
    assert time_slice.remaining_s() == pytest.approx(0.0, abs=0.05)
