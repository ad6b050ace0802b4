"""Memory bandwidth of each device and of the CPU, by copying and by a triad, as STREAM counts them.

Every byte that is read or written counts once. Arrays are far larger than the caches and rotate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import sizes
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice
from flatout_programs.kernels.timing import Clock, median_s

MIB = 2**20
QUICK = (256 * MIB, 1024 * MIB)
FULL = (16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB)
CPU_BYTES = 128 * MIB
ARRAYS = {"copy": 2, "triad": 3}
"""Arrays that one call goes through."""


def kernels(setup: Setup) -> list[CeilingKernel]:
    """Copy and triad on each device; for the CPU both in one ceiling."""
    family = []
    for device in setup.accelerators:
        for name in ARRAYS:
            curve = partial(bandwidths, setup, device, name)
            title = f"device memory, {name}"
            family.append(CeilingKernel(f"{name}-device", title, device, "GB/s", curve))
    title = f"memory, {setup.cores} cores"
    family.append(
        CeilingKernel("memory-cpu", title, "cpu", "GB/s", partial(main_memory, setup), 2.0)
    )
    return family


def bandwidths(setup: Setup, device: str, name: str, time_slice: Slice) -> Iterator[Point]:
    """GB/s over sizes of one array."""
    clock = Clock(setup.torch, device)

    def measure(size: int, budget_s: float) -> tuple[str, float, float]:
        seconds = median_s(clock, traffic(setup, device, name, size), budget_s)
        return sizes.bytes_in_words(size), ARRAYS[name] * size / seconds / 1e9, seconds

    byte_sizes = QUICK if setup.quick else FULL
    room = 0.4 * setup.free_bytes(device)
    fitting = [size for size in byte_sizes if size * ARRAYS[name] * 2 < room] or [
        byte_sizes[0] // 16
    ]
    yield from sizes.over(fitting, float, measure, time_slice)


def main_memory(setup: Setup, time_slice: Slice) -> Iterator[Point]:
    """GB/s of copy and triad by all cores."""
    clock = Clock(setup.torch, "cpu")
    array = max(CPU_BYTES, 4 * setup.cache_bytes("cpu"))
    while array > 16 * MIB and array * 6 > 0.5 * setup.free_bytes("cpu"):
        array //= 2
    for index, name in enumerate(ARRAYS):
        action = traffic(setup, "cpu", name, array)
        seconds = median_s(clock, action, max(time_slice.remaining_s() / (2 - index), 0.05))
        yield f"{name} {sizes.bytes_in_words(array)}", ARRAYS[name] * array / seconds / 1e9


def traffic(setup: Setup, device: str, name: str, size: int) -> Any:
    """An action that copies, or adds a multiple of one array to another, on rotating arrays."""
    torch = setup.torch
    count = size // 4

    def make() -> Any:
        return [setup.filled(count, device) for _ in range(ARRAYS[name])]

    arrays = setup.sets(device, make, ARRAYS[name] * size)

    def copy(call: int) -> None:
        target, source = arrays[call % len(arrays)]
        target.copy_(source)

    def triad(call: int) -> None:
        target, first, second = arrays[call % len(arrays)]
        torch.add(first, second, alpha=0.5, out=target)

    return copy if name == "copy" else triad
