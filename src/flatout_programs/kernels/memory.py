"""Memory bandwidth of each device and of the CPU, by copying and by a triad, as STREAM counts them.

Every byte that is read or written counts once. Arrays are far larger than the caches and rotate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import sizes
from flatout_programs.kernels.kernel import Here, Kernel, Point, Slice
from flatout_programs.kernels.timing import Clock, median_s

MIB = 2**20
QUICK = (256 * MIB, 1024 * MIB)
FULL = (16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB)
CPU_BYTES = 128 * MIB
ARRAYS = {"copy": 2, "triad": 3}
"""Arrays that one call goes through."""


def kernels(here: Here) -> list[Kernel]:
    """Copy and triad on each device; for the CPU both in one ceiling."""
    found = []
    for device in here.accelerators:
        for name in ARRAYS:
            curve = partial(bandwidths, here, device, name)
            title = f"device memory, {name}"
            found.append(Kernel(f"{name}-device", title, device, "GB/s", curve))
    title = f"memory, {here.cores} cores"
    found.append(Kernel("memory-cpu", title, "cpu", "GB/s", partial(main_memory, here), 2.0))
    return found


def bandwidths(here: Here, device: str, name: str, time_slice: Slice) -> Iterator[Point]:
    """GB/s over sizes of one array."""
    clock = Clock(here.torch, device)

    def measure(size: int, budget_s: float) -> tuple[str, float, float]:
        seconds = median_s(clock, traffic(here, device, name, size), budget_s)
        return sizes.bytes_in_words(size), ARRAYS[name] * size / seconds / 1e9, seconds

    wanted = QUICK if here.quick else FULL
    room = 0.4 * here.free_bytes(device)
    fitting = [size for size in wanted if size * ARRAYS[name] * 2 < room] or [wanted[0] // 16]
    yield from sizes.over(fitting, float, measure, time_slice)


def main_memory(here: Here, time_slice: Slice) -> Iterator[Point]:
    """GB/s of copy and triad by all cores."""
    clock = Clock(here.torch, "cpu")
    array = max(CPU_BYTES, 4 * here.cache_bytes("cpu"))
    while array > 16 * MIB and array * 6 > 0.5 * here.free_bytes("cpu"):
        array //= 2
    for index, name in enumerate(ARRAYS):
        action = traffic(here, "cpu", name, array)
        seconds = median_s(clock, action, max(time_slice.left_s() / (2 - index), 0.05))
        yield f"{name} {sizes.bytes_in_words(array)}", ARRAYS[name] * array / seconds / 1e9


def traffic(here: Here, device: str, name: str, size: int) -> Any:
    """An action that copies, or adds a multiple of one array to another, in turn."""
    torch = here.torch
    count = size // 4

    def make() -> Any:
        return [here.filled(count, device) for _ in range(ARRAYS[name])]

    arrays = here.sets(device, make, ARRAYS[name] * size)

    def copy(call: int) -> None:
        target, source = arrays[call % len(arrays)]
        target.copy_(source)

    def triad(call: int) -> None:
        target, one, two = arrays[call % len(arrays)]
        torch.add(one, two, alpha=0.5, out=target)

    return copy if name == "copy" else triad
