"""How times are taken: device events, warm-up until stable, the median of many batches.

- On CUDA, ROCm and XPU the device's own events time the work, so the host's other work is not
  counted; elsewhere the host's clock, around synchronised work.
- A batch holds enough calls that its time is long compared with the clock's resolution and the
launch.
- Batches are thrown away until two in a row agree: clocks rise, code is loaded, algorithms chosen.
- The median of the following batches counts; the fastest would reflect luck, the mean
interruptions. - Each call gets the number of the call, so that operands rotate and never lie in a
cache.

The same is done by triton.testing.do_bench (which empties the cache instead of rotating) and by
torch.utils.benchmark's blocked_autorange.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from flatout_programs.kernels import stopwatch

Action = Callable[[int], Any]
"""One call of the kernel; the argument counts the calls."""
BATCH_S = {"cpu": 0.02, "accelerator": 0.005}
STABLE = 0.03
"""Warm if two batches in a row agree within this share."""
WARM_SHARE = 0.35
FEWEST = 3
MOST_CALLS = 2000
"""The most calls in a batch: a device's queue holds about a thousand, so more would only wait."""


class Clock:
    """Times calls on one device; a seam for tests."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._calls = 0
        self.batch_s = BATCH_S["cpu" if device == "cpu" else "accelerator"]
        kind = device.partition(":")[0]
        self._module = None if kind == "cpu" else getattr(torch, kind)
        self._events = kind in ("cuda", "xpu")

    def seconds(self, action: Action, calls: int) -> float:
        """Seconds of all calls together."""
        if not self._events:
            self.wait()
            host_began = time.perf_counter()
            self._call(action, calls)
            self.wait()
            return time.perf_counter() - host_began
        module = self._module
        assert module is not None
        with module.device(self._device):
            began = module.Event(enable_timing=True)
            ended = module.Event(enable_timing=True)
            began.record()
            self._call(action, calls)
            ended.record()
            ended.synchronize()
            return float(began.elapsed_time(ended)) / 1000

    def wait(self) -> None:
        """Wait until the device has done all its work."""
        wait(self._torch, self._device)

    def _call(self, action: Action, calls: int) -> None:
        first, self._calls = self._calls, self._calls + calls
        for number in range(first, self._calls):
            action(number)


def wait(torch: Any, device: str) -> None:
    """Wait until the device has done all its work."""
    kind, _, number = device.partition(":")
    if kind != "cpu":
        getattr(torch, kind).synchronize(*([device] if number else []))


def median_s(clock: Any, action: Action, budget_s: float) -> float:
    """Seconds per call, within about `budget_s`; a call that takes longer is still measured.

    The first call takes no part of the budget: it loads libraries and tries algorithms. Raises what
    the kernel raises.
    """
    with stopwatch.preparing():
        clock.seconds(action, 1)
    until = time.perf_counter() + budget_s
    one_s = max(clock.seconds(action, 1), 1e-7)
    calls = max(1, min(MOST_CALLS, round(min(clock.batch_s, budget_s / 8) / one_s)))
    _warm_up(clock, action, calls, min(until, time.perf_counter() + budget_s * WARM_SHARE))
    batches: list[float] = []
    while len(batches) < FEWEST or time.perf_counter() < until:
        batches.append(clock.seconds(action, calls) / calls)
        if time.perf_counter() > until + budget_s:
            break
    return statistics.median(batches)


def _warm_up(clock: Any, action: Action, calls: int, until: float) -> None:
    before = float("inf")
    while time.perf_counter() < until:
        now = clock.seconds(action, calls)
        if abs(now - before) <= STABLE * now:
            return
        before = now
