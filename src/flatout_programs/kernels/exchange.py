"""Between the devices: copies from each to the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import timing
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice

MIB = 2**20
COPIED = 256 * MIB


def kernels(setup: Setup) -> list[CeilingKernel]:
    """Nothing if there is only one device."""
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
    return [copy]


def pairs(setup: Setup, cards: list[str], time_slice: Slice) -> Iterator[Point]:
    """GB/s for each pair; `--quick` takes only neighbours."""
    card_pairs = list(itertools.permutations(cards, 2))
    if setup.quick:
        card_pairs = list(zip(cards, cards[1:] + cards[:1]))
    for index, (source, target) in enumerate(card_pairs):
        budget_s = max(time_slice.remaining_s() / (len(card_pairs) - index), 0.01)
        torch = setup.torch
        values = setup.filled(COPIED // 4, source)
        received = torch.empty_like(values, device=target)
        action = partial(_copy, received, values)
        seconds = timing.median_s(_Both(torch, source, target), action, budget_s)
        yield f"{source} to {target}", COPIED / seconds / 1e9


def _copy(target: Any, source: Any, _: int) -> None:
    target.copy_(source, non_blocking=True)


class _Both(timing.Clock):
    """Events of the source's stream, on which torch puts the copy; both devices are idle before."""

    def __init__(self, torch: Any, source: str, target: str) -> None:
        super().__init__(torch, source)
        self._other = target

    def seconds(self, action: timing.Action, calls: int) -> float:
        timing.wait(self._torch, self._other)
        self.wait()
        return super().seconds(action, calls)
