"""The cost of a kernel besides its work: launching one, and launching many."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial

from flatout_programs.kernels import timing
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice

ROUND = 500
"""Launches in a row, fewer than a queue holds, so the host never has to wait."""


def kernels(setup: Setup) -> list[CeilingKernel]:
    """Latency and rate on each device."""
    family = []
    for device in setup.accelerators:
        family += [
            CeilingKernel(
                "launch-latency",
                "one tiny kernel, until the host sees it done",
                device,
                "us",
                partial(latency, setup, device),
                0.5,
            ),
            CeilingKernel(
                "launch-rate",
                "tiny kernels launched one after the other",
                device,
                "launches/s",
                partial(rate, setup, device),
                0.5,
            ),
        ]
    return family


def latency(setup: Setup, device: str, time_slice: Slice) -> Iterator[Point]:
    """Microseconds from the call to its end on an idle device."""
    values = setup.random((32,), setup.torch.float32, device)
    times = []
    timing.wait(setup.torch, device)
    for number in range(20_000):
        began = time.perf_counter()
        values.add_(1.0)
        timing.wait(setup.torch, device)
        if number >= 100:
            times.append(time.perf_counter() - began)
        if len(times) >= 50 and time_slice.remaining_s() <= 0:
            break
    yield "1 kernel", statistics.median(times) * 1e6


def rate(setup: Setup, device: str, time_slice: Slice) -> Iterator[Point]:
    """Launches per second while the host does nothing else, the device ready for the next."""
    values = setup.random((32,), setup.torch.float32, device)
    times: list[float] = []
    while len(times) < 6 or (time_slice.remaining_s() > 0 and len(times) < 2000):
        timing.wait(setup.torch, device)
        began = time.perf_counter()
        for _ in range(ROUND):
            values.add_(1.0)
        timing.wait(setup.torch, device)
        times.append((time.perf_counter() - began) / ROUND)
    yield f"{ROUND} kernels", 1 / statistics.median(times[3:])
