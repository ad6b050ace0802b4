"""The cost of a kernel besides its work: launching one, launching many, replaying them as
a graph.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import stopwatch, timing
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice

ROUND = 500
"""Launches in a row, fewer than a queue holds, so the host never has to wait."""
GRAPHS = (10, 100, 1000)
"""Kernels in one graph."""


def kernels(setup: Setup) -> list[CeilingKernel]:
    """Latency and rate on each device, and graphs if supported."""
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
        if device.startswith("cuda"):
            title = "tiny kernels replayed as a graph"
            curve = partial(replays, setup, device)
            family.append(CeilingKernel("graph-replay", title, device, "launches/s", curve, 0.5))
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


def replays(setup: Setup, device: str, time_slice: Slice) -> Iterator[Point]:
    """Kernels per second inside a graph, by the number it holds."""
    torch = setup.torch
    graph_sizes = GRAPHS[1:2] if setup.quick else GRAPHS
    with torch.cuda.device(device):
        for index, count in enumerate(graph_sizes):
            with stopwatch.preparing():
                graph = _graph(setup, device, count)
            clock = timing.Clock(torch, device)
            budget_s = max(time_slice.remaining_s() / (len(graph_sizes) - index), 0.02)
            seconds = timing.median_s(clock, partial(_replay, graph), budget_s)
            yield f"{count} kernels", count / seconds


def _replay(graph: Any, _: int) -> None:
    graph.replay()


def _graph(setup: Setup, device: str, count: int) -> Any:
    """`count` dependent tiny kernels, as one launch."""
    torch = setup.torch
    values = setup.random((32,), torch.float32, device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        values.add_(1.0)  # captured work must have run once
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Not on torch's own stream for captures, which belongs to the device on which it was first
    # made.
    with torch.cuda.graph(graph, stream=side):
        for _ in range(count):
            values.add_(1e-6)
    return graph
