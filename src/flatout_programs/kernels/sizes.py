"""A curve over sizes within a time slice: each size has its part, and too large ones are
left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from flatout_programs.kernels import timing
from flatout_programs.kernels.kernel import Point, Slice

S = TypeVar("S")
CALLS = 8
"""A size is begun if this many calls are expected to fit into its part of the time."""


def over(
    sizes: Sequence[S],
    work: Callable[[S], float],
    measure: Callable[[S, float], tuple[str, float, float]],
    time_slice: Slice,
) -> Iterator[Point]:
    """Measure `sizes`, small first. `measure(size, seconds)`: words, value, seconds of one call.

    work: the amount of work at a size, to estimate its time from the one before. The first size is
    measured however long it takes.
    """
    per_work = 0.0
    for index, size in enumerate(sizes):
        limit_s = time_slice.remaining_s() / (len(sizes) - index)
        if index and per_work * work(size) * CALLS > max(limit_s, 0.0):
            return
        words, value, took_s = measure(size, max(limit_s, 0.01))
        per_work = took_s / work(size)
        yield words, value


def bytes_in_words(count: int) -> str:
    """256 MiB, 64 KiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count} B"


def warm(torch: Any, device: str, seconds: float) -> None:
    """Give the device enough work that its clocks rise."""
    values = torch.randn(2048, 2048, device=device)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(10):
            torch.mm(values, values)
        timing.wait(torch, device)
