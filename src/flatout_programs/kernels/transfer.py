"""Copies between the host's memory and a device: pageable and pinned, both ways, over sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import sizes
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice
from flatout_programs.kernels.timing import Clock, median_s

MIB = 2**20
QUICK = (64 * MIB,)
FULL = (MIB // 16, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
MOST = 8
"""The number of buffers: pinning memory takes longer than copying it."""
WAYS = ("host-to-device", "device-to-host")
MEMORIES = ("pinned", "pageable")


def kernels(setup: Setup) -> list[CeilingKernel]:
    """Four kernels on each device with its own memory."""
    return [
        CeilingKernel(
            f"copy-{way}-{memory}",
            f"copy {way.replace('-', ' ')}, {memory}",
            device,
            "GB/s",
            partial(copies, setup, device, way, memory),
            0.7,
        )
        for device in setup.accelerators
        if device != "mps"
        for memory in MEMORIES
        for way in WAYS
    ]


def copies(setup: Setup, device: str, way: str, memory: str, time_slice: Slice) -> Iterator[Point]:
    """GB/s over sizes. Pageable memory is first copied by the host, so the host's clock
    times it.
    """
    clock = Clock(setup.torch, device)

    def measure(size: int, budget_s: float) -> tuple[str, float, float]:
        seconds = median_s(clock, copy(setup, device, way, memory, size), budget_s)
        return sizes.bytes_in_words(size), size / seconds / 1e9, seconds

    yield from sizes.over(QUICK if setup.quick else FULL, float, measure, time_slice)


def copy(setup: Setup, device: str, way: str, memory: str, size: int) -> Any:
    """An action that copies rotating buffers, none of which may be in the processor's cache."""
    pinned = memory == "pinned"
    count = size // 4
    hosts = setup.sets("cpu", lambda: _host(setup, count, pinned), size, MOST)
    devices = [setup.filled(count, device) for _ in range(2)]

    def to_device(call: int) -> None:
        devices[call % 2].copy_(hosts[call % len(hosts)], non_blocking=pinned)

    def to_host(call: int) -> None:
        hosts[call % len(hosts)].copy_(devices[call % 2], non_blocking=pinned)

    return to_device if way == "host-to-device" else to_host


def _host(setup: Setup, count: int, pinned: bool) -> Any:
    values = setup.filled(count, "cpu")
    return values.pin_memory() if pinned else values
