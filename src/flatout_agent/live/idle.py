"""The share of a unit in which an accelerator waits for the program: the cost of launching and of
the host.

Measured without a profiler. At the start of some units the device is kept busy with nothing
(`torch.cuda._sleep`). If this fits into the time that it waits anyway, the units take no longer. If
it never waits, they take longer by all of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator

import torch

from flatout_agent.live.state import Tick

FEWEST, MOST, LEAST_S = 3, 50, 0.2
"""Units in each half of the measurement: the minimum, the maximum, and the seconds aimed at in
between."""
TRIES = 3
"""How often a half is measured at most, if units in it evaluate, save or begin an epoch."""
SHORTEST_S, LONGEST_S = 0.002, 0.5
"""Limits of the device's sleep in each unit, which otherwise lasts as long as a unit."""
CYCLES = 5_000_000
"""Cycles of a first sleep of some milliseconds, which shows how long a cycle is."""


def of_a_unit(
    clock: Callable[[], float],
    unit_s: float,
    lose: Callable[[float], None],
    device: torch.device | None,
) -> Generator[None, Tick, float]:
    """Share of a unit in which the device has nothing to do.

    clock: waits for all queued work and returns the time in seconds. lose: called with the seconds
    that the measurement cost the run. device: the models', or None for the current one.
    """
    asleep_s = min(LONGEST_S, max(SHORTEST_S, unit_s))
    _sleep(CYCLES // 100, device)  # loads the kernel
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    _sleep(CYCLES, device)
    torch.cuda.synchronize(device)
    cycles = int(asleep_s * (CYCLES / (time.perf_counter() - began)))
    units = min(MOST, max(FEWEST, math.ceil(LEAST_S / unit_s)))
    seconds: list[float] = []
    for asleep in (False, True):
        clean = False
        tries: list[float] = []
        while not clean and len(tries) < TRIES:
            clean, began = True, clock()
            for _ in range(units):
                if asleep:
                    _sleep(cycles, device)
                tick = yield
                clean = clean and tick.clean
            tries.append((clock() - began) / units)
        seconds.append(tries[-1] if clean else min(tries))
    as_usual_s, longer_s = seconds
    lose(len(tries) * units * (longer_s - as_usual_s))
    idle_s = asleep_s - (longer_s - as_usual_s)
    return min(1.0, max(0.0, idle_s / as_usual_s))


def _sleep(cycles: int, device: torch.device | None) -> None:
    with torch.cuda.device(device):
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch's own
