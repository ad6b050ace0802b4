"""Memory that grows from step to step: how fast, how significantly, and by which tensors."""

from __future__ import annotations

import gc
import itertools
import math
import statistics
from collections import Counter
from dataclasses import dataclass

import torch

from flatout_train.memory import counters as memory_counters
from flatout_train.memory.reporting import live_tensors
from flatout_train.sizes import size

_WARM_UP = 3
"""Discarded measurements: caches and the optimizer's state are created in the first steps."""
_FEWEST = 8
_MOST = 256
"""Most measurements kept: beyond that every other one is dropped."""
_SURE = 3.0
"""Standard deviations of Kendall's rank statistic: chance exceeds it once in 700 checks."""

Kind = tuple[tuple[int, ...], torch.dtype, str, bool]


@dataclass(frozen=True)
class Grown:
    """Tensors of one kind whose number has increased."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    with_graph: bool
    """They have a grad_fn: each keeps alive the tensors saved for its backward pass."""
    count: int
    """Additional tensors of this kind."""
    bytes: int
    """Their size in all."""


@dataclass(frozen=True)
class Growth:
    """The result of a leak check between its first and its last measurement."""

    steps: int
    """Number of steps compared, or 0 if there are not enough measurements yet."""
    bytes_per_step: float
    """Median slope of all pairs of measurements (Theil-Sen)."""
    leaks: bool
    """Whether the growth is significant and continues after the first steps."""
    kinds: tuple[Grown, ...]
    """Kinds of tensors that Python can see and that increased, most bytes first."""

    def __str__(self) -> str:
        if not self.steps:
            return "memory: not enough steps measured yet"
        if not self.leaks:
            return f"memory: no growth over {self.steps} steps"
        rate = size(round(self.bytes_per_step))
        lines = [f"memory grows by {rate} per step, over {self.steps} steps"]
        for kind in self.kinds:
            shape = "x".join(map(str, kind.shape)) or "0-d"
            what = f"{shape} {str(kind.dtype).removeprefix('torch.')} on {kind.device}"
            graph = ", with graph" if kind.with_graph else ""
            lines.append(f"  {kind.count:+6d} tensors {what}{graph}: {size(kind.bytes)}")
        if any(kind.with_graph for kind in self.kinds):
            lines.append("  a tensor stored with its graph keeps all activations: use .detach()")
        return "\n".join(lines)


class LeakCheck:
    """Compares the memory in use at the same point of each step; created by `leaks()`."""

    def __init__(self, device: torch.device, every: int) -> None:
        self._device, self._every = device, every
        self._calls = 0
        self._points: list[tuple[int, int]] = []
        self._skip = _WARM_UP
        self._stride = 1
        self._before: Counter[Kind] | None = None

    def check(self) -> None:
        """Call once per step, at the same point; takes microseconds and does not synchronise."""
        self._calls += 1
        if self._calls % (self._every * self._stride):
            return
        if self._skip:
            self._skip -= 1
            return
        if self._before is None:
            self._before = _census()
        count = memory_counters.live(self._device)
        if count is None:
            return
        self._points.append((self._calls, count))
        if len(self._points) > _MOST:
            del self._points[::2]
            self._stride *= 2

    def growth(self) -> Growth:
        """The result so far; searches all live tensors, so do not call it in each step."""
        if self._before is None or len(self._points) < _FEWEST:
            return Growth(0, 0.0, False, ())
        late = self._points[len(self._points) // 3 :]
        slope, surely = _trend(late)
        steps = late[-1][0] - late[0][0]
        leaks = surely and slope > 0
        kinds = _grown(self._before, _census()) if leaks else ()
        return Growth(steps, slope, leaks, kinds)


def _trend(points: list[tuple[int, int]]) -> tuple[float, bool]:
    """Theil-Sen slope, and whether Kendall's test (with ties) finds it significant."""
    pairs = list(itertools.combinations(points, 2))
    slope = statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)
    score = sum((b[1] > a[1]) - (b[1] < a[1]) for a, b in pairs)
    count = len(points)
    ties = Counter(value for _, value in points).values()
    spread = _weight(count) - sum(_weight(tie) for tie in ties)
    return slope, spread > 0 and score / math.sqrt(spread / 18) > _SURE


def _weight(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)


def _census() -> Counter[Kind]:
    """Live tensors that Python can see, counted by kind."""
    counted: Counter[Kind] = Counter()
    gc.collect()
    for tensor in live_tensors():
        kind = (tuple(tensor.shape), tensor.dtype, str(tensor.device), tensor.grad_fn is not None)
        counted[kind] += 1
    return counted


def _grown(before: Counter[Kind], now: Counter[Kind]) -> tuple[Grown, ...]:
    grown = [
        Grown(*kind, count, count * math.prod(kind[0]) * kind[1].itemsize)
        for kind, count in (now - before).items()
    ]
    return tuple(sorted(grown, key=lambda kind: -kind.bytes)[:10])
