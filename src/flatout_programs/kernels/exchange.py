"""Between the devices: copies from each to the next, and the sum over all of them."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import sizes, timing
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice

MIB = 2**20
COPIED = 256 * MIB
SUMMED_QUICK = (256 * MIB,)
SUMMED = (MIB, 16 * MIB, 256 * MIB)
CALLS = 5


def kernels(setup: Setup) -> list[CeilingKernel]:
    """Nothing where there is one device."""
    cards = [device for device in setup.accelerators if device.startswith("cuda")]
    if len(cards) < 2:
        return []
    copy = CeilingKernel(
        "copy-device-to-device",
        f"copy between devices, {len(cards)} of them, best pair",
        cards[0],
        "GB/s",
        partial(pairs, setup, cards),
        2.0,
        note="one direction at a time",
    )
    total = CeilingKernel(
        "all-reduce",
        f"all-reduce over {len(cards)} devices, bus bandwidth",
        cards[0],
        "GB/s",
        partial(sums, setup, cards),
        2.0,
        note="algorithm bandwidth x 2(n-1)/n, as nccl-tests counts",
        impossible="" if _sums_here(setup.torch) else "this torch was built without NCCL",
    )
    return [copy, total]


def pairs(setup: Setup, cards: list[str], time_slice: Slice) -> Iterator[Point]:
    """GB/s for each pair; `--quick` takes neighbours alone."""
    card_pairs = list(itertools.permutations(cards, 2))
    if setup.quick:
        card_pairs = list(zip(cards, cards[1:] + cards[:1]))
    for index, (source, target) in enumerate(card_pairs):
        budget_s = max(time_slice.remaining_s() / (len(card_pairs) - index), 0.01)
        seconds = _copy_s(setup, source, target, budget_s)
        yield f"{source} to {target}", COPIED / seconds / 1e9


def _copy_s(setup: Setup, source: str, target: str, budget_s: float) -> float:
    torch = setup.torch
    values = setup.filled(COPIED // 4, source)
    received = torch.empty_like(values, device=target)
    action = partial(_copy, received, values)
    return timing.median_s(_Both(torch, source, target), action, budget_s)


def _copy(target: Any, source: Any, _: int) -> None:
    target.copy_(source, non_blocking=True)


class _Both(timing.Clock):
    """Events of the source's stream, on which torch puts the copy; both devices at rest before."""

    def __init__(self, torch: Any, source: str, target: str) -> None:
        super().__init__(torch, source)
        self._other = target

    def seconds(self, action: timing.Action, calls: int) -> float:
        timing.wait(self._torch, self._other)
        self.wait()
        return super().seconds(action, calls)


def sums(setup: Setup, cards: list[str], time_slice: Slice) -> Iterator[Point]:
    """GB/s over sizes: NCCL within this one process."""
    torch = setup.torch
    byte_sizes = SUMMED_QUICK if setup.quick else SUMMED
    for index, size in enumerate(byte_sizes):
        values = [setup.random((size // 4,), torch.float32, card) for card in cards]
        budget_s = max(time_slice.remaining_s() / (len(byte_sizes) - index), 0.05)
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
