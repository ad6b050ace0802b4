"""Blocks: neighbouring steps under one set of boosts, and the time that a step of them takes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

LEAST_STEPS = 4
LEAST_S = 0.15
LONG_STEP_S = 0.15
"""Of steps this long two make a block: one alone is longer than most of what disturbs it."""
AT_MOST_STEPS = 400
MOST_LOST = 6
"""Stretches in a row that are broken off on a device: the small last batch of an epoch breaks one
off, and the first of the next epoch another."""
FEWEST_OF = 10
"""A stretch there has at least this part of a block: the device stands still at its ends."""
DISTURBED = 2.0
"""A step that takes so many times the block's median ..."""
DISTURBED_SHARE = 0.2
"""... and makes up this share of the block was disturbed from outside."""


@dataclass(frozen=True)
class Tick:
    """One unit of work has ended: a step, or a micro-step where steps are made of many."""

    seconds: float
    size: int
    """Elements of the model's inputs in it."""
    clean: bool
    """False: something beside training happened (evaluation, saving, a new shape, a compile)."""


@dataclass(frozen=True)
class Block:
    """seconds: per unit, as a unit of the program's usual size would take."""

    seconds: float
    units: int
    disturbed: bool
    wall_s: float


class Sizes:
    """How the time of a unit grows with the size of its inputs, learnt as the program runs.

    One usual size: units of other sizes (the last batch of an epoch) are left out. Many sizes:
    log time is taken to grow in a straight line with log size.
    """

    MOST_SEEN = 512

    def __init__(self) -> None:
        self.count: Counter[int] = Counter()
        self._points: list[tuple[float, float]] = []
        self.slope = 0.0

    def add(self, tick: Tick) -> None:
        """Learn from a clean unit of the program as written."""
        if tick.size <= 0 or tick.seconds <= 0 or len(self._points) >= self.MOST_SEEN:
            return
        self.count[tick.size] += 1
        self._points.append((math.log(tick.size), math.log(tick.seconds)))
        self.slope = self._fit() if self.vary else 0.0

    @property
    def vary(self) -> bool:
        """Whether there is no usual size."""
        if not self.count:
            return False
        return self.count.most_common(1)[0][1] < 0.7 * sum(self.count.values())

    @property
    def usual(self) -> int:
        """The most frequent size; 0: none was seen."""
        return self.count.most_common(1)[0][0] if self.count else 0

    def fits(self, tick: Tick) -> bool:
        """Whether the unit can stand beside the others."""
        return self.vary or not self.count or tick.size == self.usual

    def even(self, tick: Tick) -> float:
        """Seconds that a unit of the usual size would have taken."""
        if not self.slope or tick.size <= 0:
            return tick.seconds
        return tick.seconds * math.exp(self.slope * (math.log(self.usual) - math.log(tick.size)))

    def _fit(self) -> float:
        if len(self._points) < 8:
            return 0.0
        xs, ys = zip(*self._points, strict=True)
        mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
        square = sum((x - mean_x) ** 2 for x in xs)
        if square < 1e-6:
            return 0.0
        slope = sum((x - mean_x) * (y - mean_y) for x, y in self._points) / square
        return float(min(2.0, max(0.0, slope)))


def length(unit_s: float, floor_s: float = LEAST_S) -> int:
    """Units that make a block, where one takes so many seconds."""
    least = 2 if unit_s >= LONG_STEP_S else LEAST_STEPS
    return min(AT_MOST_STEPS, max(least, math.ceil(floor_s / max(unit_s, 1e-6))))


def collect(
    units: int, skip: int, sizes: Sizes, clock: Callable[[], float] | None = None
) -> Generator[None, Tick, Block]:
    """Wait for `skip` units, then for so many that count.

    Where hardly a unit is clean (a program that saves or evaluates at each step) all of them count.

    `clock`: waits for the accelerator and tells the time; never asked at each unit.
    """
    wall_s = 0.0
    for _ in range(skip):
        wall_s += (yield).seconds
    collection = _on_host(units, sizes) if clock is None else _on_device(units, sizes, clock)
    block = yield from collection
    return replace(block, wall_s=wall_s + block.wall_s)


def _on_host(units: int, sizes: Sizes) -> Generator[None, Tick, Block]:
    seconds: list[float] = []
    other_seconds: list[float] = []
    wall_s = 0.0
    while len(seconds) < units and len(other_seconds) < 3 * units + 8:
        tick = yield
        wall_s += tick.seconds
        (seconds if _counts(tick, sizes) else other_seconds).append(sizes.even(tick))
    if len(seconds) < units / 2:
        seconds += other_seconds
    return Block(statistics.fmean(seconds), len(seconds), _disturbed(seconds), wall_s)


def _on_device(
    units: int, sizes: Sizes, clock: Callable[[], float]
) -> Generator[None, Tick, Block]:
    """Stretches of units that count, each between two questions of the clock.

    The host runs ahead of a device. A unit that does not count (with an evaluation, a save) is the
    one that waits for all that is queued, so that its share cannot be told by the host's time: the
    stretch that it breaks off is lost. Where epochs are shorter than a block, the next stretch ends
    before it comes.
    """
    timed: list[Tick] = []
    run: list[Tick] = []
    device_s = wall_s = 0.0
    stretch, lost, whole = units, 0, False
    began = clock()
    while len(timed) < units and lost <= MOST_LOST:
        tick = yield
        wall_s += tick.seconds
        counts = _counts(tick, sizes)
        if counts:
            run.append(tick)
            if len(run) < stretch:
                continue
        elif whole and run:  # all that stands between two units that do not count
            least = min(units, max(LEAST_STEPS, units // FEWEST_OF))
            stretch = max(least, min(stretch, len(run)))
        now = clock()
        if counts:
            device_s += now - began
            timed += run
        lost, whole = (0, False) if counts else (lost + 1, True)
        began, run = now, []
    if len(timed) >= units / 2:
        return _block(timed, sizes, device_s, lost > MOST_LOST, wall_s)
    block = yield from _all(units, sizes, clock, began)
    return replace(block, wall_s=wall_s + block.wall_s)


def _all(
    units: int, sizes: Sizes, clock: Callable[[], float], began: float
) -> Generator[None, Tick, Block]:
    """Units of all kinds; disturbed where most would count, and another try may find them alone."""
    ticks: list[Tick] = []
    while len(ticks) < units:
        ticks.append((yield))
    most = sum(_counts(tick, sizes) for tick in ticks) > units / 2
    wall_s = sum(tick.seconds for tick in ticks)
    return _block(ticks, sizes, clock() - began, most, wall_s)


def _block(
    ticks: list[Tick], sizes: Sizes, device_s: float, disturbed: bool, wall_s: float
) -> Block:
    """`device_s` is of all these units together."""
    host_s = sum(tick.seconds for tick in ticks)
    even = sum(map(sizes.even, ticks)) / host_s if host_s > 0 else 1.0
    return Block(even * device_s / len(ticks), len(ticks), disturbed, wall_s)


def _counts(tick: Tick, sizes: Sizes) -> bool:
    return tick.clean and sizes.fits(tick)


def _disturbed(seconds: list[float]) -> bool:
    usual = statistics.median(seconds)
    late = sum(value - usual for value in seconds if value > DISTURBED * usual)
    return late > DISTURBED_SHARE * usual * len(seconds)
