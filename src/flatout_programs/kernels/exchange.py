"""Between the devices: copies from each to the next, and the sum over all of them."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import sizes, timing
from flatout_programs.kernels.kernel import Here, Kernel, Point, Slice

MIB = 2**20
COPIED = 256 * MIB
SUMMED_QUICK = (256 * MIB,)
SUMMED = (MIB, 16 * MIB, 256 * MIB)
CALLS = 5


def kernels(here: Here) -> list[Kernel]:
    """Nothing where there is one device."""
    cards = [device for device in here.accelerators if device.startswith("cuda")]
    if len(cards) < 2:
        return []
    copy = Kernel(
        "copy-device-to-device",
        f"copy between devices, {len(cards)} of them, best pair",
        cards[0],
        "GB/s",
        partial(pairs, here, cards),
        2.0,
        note="one direction at a time",
    )
    total = Kernel(
        "all-reduce",
        f"all-reduce over {len(cards)} devices, bus bandwidth",
        cards[0],
        "GB/s",
        partial(sums, here, cards),
        2.0,
        note="algorithm bandwidth x 2(n-1)/n, as nccl-tests counts",
        impossible="" if _sums_here(here.torch) else "this torch was built without NCCL",
    )
    return [copy, total]


def pairs(here: Here, cards: list[str], time_slice: Slice) -> Iterator[Point]:
    """GB/s for each pair; `--quick` takes neighbours alone."""
    found = list(itertools.permutations(cards, 2))
    if here.quick:
        found = list(zip(cards, cards[1:] + cards[:1]))
    for index, (one, two) in enumerate(found):
        budget_s = max(time_slice.left_s() / (len(found) - index), 0.01)
        seconds = _copy_s(here, one, two, budget_s)
        yield f"{one} to {two}", COPIED / seconds / 1e9


def _copy_s(here: Here, one: str, two: str, budget_s: float) -> float:
    torch = here.torch
    source = here.filled(COPIED // 4, one)
    target = torch.empty_like(source, device=two)
    action = partial(_copy, target, source)
    return timing.median_s(_Both(torch, one, two), action, budget_s)


def _copy(target: Any, source: Any, _: int) -> None:
    target.copy_(source, non_blocking=True)


class _Both(timing.Clock):
    """Events of the source's stream, on which torch puts the copy; both devices at rest before."""

    def __init__(self, torch: Any, one: str, two: str) -> None:
        super().__init__(torch, one)
        self._other = two

    def seconds(self, action: timing.Action, calls: int) -> float:
        timing.wait(self._torch, self._other)
        self.wait()
        return super().seconds(action, calls)


def sums(here: Here, cards: list[str], time_slice: Slice) -> Iterator[Point]:
    """GB/s over sizes: NCCL within this one process."""
    torch = here.torch
    wanted = SUMMED_QUICK if here.quick else SUMMED
    for index, size in enumerate(wanted):
        values = [here.random((size // 4,), torch.float32, card) for card in cards]
        budget_s = max(time_slice.left_s() / (len(wanted) - index), 0.05)
        seconds = _sum_s(torch, cards, values, budget_s)
        share = 2 * (len(cards) - 1) / len(cards)
        yield sizes.bytes_in_words(size), share * size / seconds / 1e9


def _sum_s(torch: Any, cards: list[str], values: list[Any], budget_s: float) -> float:
    """By the host's clock: the work is on every device at once."""
    until = time.perf_counter() + budget_s
    times: list[float] = []
    while len(times) < 5 or time.perf_counter() < until:
        for card in cards:
            timing.wait(torch, card)
        began = time.perf_counter()
        for _ in range(CALLS):
            torch.cuda.nccl.all_reduce(values)
        for card in cards:
            timing.wait(torch, card)
        times.append((time.perf_counter() - began) / CALLS)
        for value in values:  # sums of sums would soon be infinite
            value.normal_()
    return statistics.median(times[2:])


def _sums_here(torch: Any) -> bool:
    return hasattr(torch._C, "_nccl_all_reduce")
