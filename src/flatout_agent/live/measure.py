"""Measure the running program in blocks of neighbouring steps under one set of boosts.

Two neighbouring blocks make a pair: one with and one without the boosts being compared.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from flatout_agent import wire
from flatout_agent.live import decide
from flatout_agent.live.state import Machinery, State, Tick

LEAST_STEPS = 4
LEAST_S, SHORTEST_S = 0.15, 0.03
"""The least seconds of a block; the second value applies if the run ends soon, ..."""
RUN_SHARE = 1 / 30
"""... that is, if a block may take only this share of the time left."""
LONG_STEP_S, LONGEST_STEP_S = 0.15, 1.2
"""If steps are this long, two make a block, as one alone outlasts most disturbances; if they are as
long as the second value, one does."""
SKIP, NO_SKIP_S = 1, 0.4
"""Units not counted after a switch, as caches are cold. In units of this many seconds that hardly
matters."""
SETTLE_MOST = 12
"""The same if something was compiled meanwhile."""
LOADER_BLOCK_S = 0.8
"""Blocks of a boost that switches loading are longer: batches that workers have ready look fast."""
REMEMBERED, TELLING = 8, 3
"""Pairs of like neighbouring blocks that give the noise: at most the last so many, and the
minimum."""
AT_MOST_STEPS = 400
MOST_LOST = 6
"""Stretches that may be broken off in a row on a device: the small last batch of an epoch breaks
one off, and the first of the next epoch another."""
FEWEST_OF = 10
"""A stretch there covers at least this part of a block, since the device is idle at its ends."""
DISTURBED = 2.0
"""A step that takes this many times the block's median ..."""
DISTURBED_SHARE = 0.2
"""... and makes up this share of the block was disturbed from outside."""
MOST_BLOCKS, ALIKE = 4, 1.25
"""Disturbed blocks in a row, at most, and the factor up to which two of them are alike."""


@dataclass(frozen=True)
class Block:
    """seconds: per unit, scaled to a unit of the program's usual size."""

    seconds: float
    units: int
    disturbed: bool
    wall_s: float
    spread: float = 0.0
    """Relative standard error of `seconds`, from the spread of the units; 0 on a device, whose
    units are not timed one by one."""


class Sizes:
    """How the time of a unit grows with the size of its inputs, learnt as the program runs.

    If one size is usual, units of other sizes (the last batch of an epoch) are left out. If there
    are many, log time is assumed to grow linearly with log size.
    """

    MOST_SEEN = 512

    def __init__(self) -> None:
        self.count: Counter[int] = Counter()
        self._points: list[tuple[float, float]] = []
        self.slope = 0.0
        self.never_clean = False
        """None of the last units was clean: the program evaluates or saves at each step."""

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
        """The most frequent size, or 0 if none was seen."""
        return self.count.most_common(1)[0][0] if self.count else 0

    def fits(self, tick: Tick) -> bool:
        """Whether the unit can be compared with the others."""
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
    """The number of units in a block, if one takes this many seconds."""
    least = LEAST_STEPS if unit_s < LONG_STEP_S else 2 if unit_s < LONGEST_STEP_S else 1
    return min(AT_MOST_STEPS, max(least, math.ceil(floor_s / max(unit_s, 1e-6))))


def collect(
    units: int, skip: int, sizes: Sizes, clock: Callable[[], float] | None = None
) -> Generator[None, Tick, Block]:
    """Wait for `skip` units, then for `units` that count.

    If hardly a unit is clean (a program that saves or evaluates at each step), all of them count.

    `clock`: waits for the accelerator and returns the time; never called at each unit.
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
    most_others = units if sizes.never_clean else 3 * units + 8
    while len(seconds) < units and len(other_seconds) < most_others:
        tick = yield
        wall_s += tick.seconds
        (seconds if _counts(tick, sizes) else other_seconds).append(sizes.even(tick))
    sizes.never_clean = not seconds
    if len(seconds) < units / 2:
        seconds += other_seconds
    mean_s = statistics.fmean(seconds)
    spread = (
        statistics.stdev(seconds) / math.sqrt(len(seconds)) / mean_s if len(seconds) > 1 else 0.0
    )
    return Block(mean_s, len(seconds), _disturbed(seconds), wall_s, spread)


def _on_device(
    units: int, sizes: Sizes, clock: Callable[[], float]
) -> Generator[None, Tick, Block]:
    """Stretches of units that count, each between two readings of the clock.

    The host runs ahead of a device. A unit that does not count (with an evaluation or a save) waits
    for all queued work, so the host's time does not give its share, and the stretch that it breaks
    off is lost. If epochs are shorter than a block, the next stretch ends before such a unit comes.
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
        elif whole and run:  # everything between two units that do not count
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
    """Units of all kinds; marked as disturbed if most would count, as another try may find them
    alone.
    """
    ticks: list[Tick] = []
    while len(ticks) < units:
        ticks.append((yield))
    most = sum(_counts(tick, sizes) for tick in ticks) > units / 2
    wall_s = sum(tick.seconds for tick in ticks)
    return _block(ticks, sizes, clock() - began, most, wall_s)


def _block(
    ticks: list[Tick], sizes: Sizes, device_s: float, disturbed: bool, wall_s: float
) -> Block:
    """`device_s` covers all these units together."""
    host_s = sum(tick.seconds for tick in ticks)
    even = sum(map(sizes.even, ticks)) / host_s if host_s > 0 else 1.0
    return Block(even * device_s / len(ticks), len(ticks), disturbed, wall_s)


def _counts(tick: Tick, sizes: Sizes) -> bool:
    return tick.clean and sizes.fits(tick)


def _disturbed(seconds: list[float]) -> bool:
    usual = statistics.median_low(seconds)  # of two, one may hold an evaluation
    late = sum(value - usual for value in seconds if value > DISTURBED * usual)
    return late > DISTURBED_SHARE * usual * len(seconds)


class Measure:
    """Switches the program between two sets of boosts and times the blocks."""

    def __init__(
        self, machinery: Machinery, state: State, lose: Callable[[float], None], seed: int
    ) -> None:
        """lose: called with the extra seconds that a pair took because of what was tried."""
        self.machinery, self.state, self._lose = machinery, state, lose
        self.sizes = Sizes()
        self.accelerated = False
        """The device lags behind the host, which waits for it at both ends of a block."""
        self.left_s: float | None = None
        """Seconds that the run will still train, or None if unknown."""
        self.broken_by_trial = False
        self._was_sound = True
        self._before: tuple[list[wire.BoostOrder], float] | None = None
        """The block that has just ended: its boosts, and seconds of a unit."""
        self._alike: deque[float] = deque(maxlen=REMEMBERED)
        """Log-ratios of neighbouring blocks under the same boosts."""
        self._spreads: deque[float] = deque(maxlen=REMEMBERED)
        """The relative error of a block's mean, from the spread of its units."""
        self._random = random.Random(seed)
        self._flip = False
        self._begun = False

    def begin(self) -> None:
        """Called before the first step under another boost, which is not to blame for what is
        unsound by now.
        """
        self._was_sound, self._begun = self.machinery.sound(), True

    def floor_s(self, loads: bool = False) -> float:
        """The least seconds that a block takes."""
        if loads:
            return LOADER_BLOCK_S
        if self.left_s is None:
            return LEAST_S
        return min(LEAST_S, max(SHORTEST_S, RUN_SHARE * self.left_s))

    def pair_s(self, loads: bool = False) -> float:
        """Seconds that one pair takes at the present speed."""
        unit_s = self.state.now_s
        skip = SKIP if unit_s < NO_SKIP_S else 0
        return 2 * (self._units(loads) + skip / 2) * unit_s

    def _units(self, loads: bool) -> int:
        """Units of a block; beside workers, whose batches come in bursts, twice what they hold."""
        unit_s = self.state.now_s
        bursts = min(2 * self.machinery.buffered(), math.ceil(LOADER_BLOCK_S / max(unit_s, 1e-6)))
        return max(length(unit_s, self.floor_s(loads)), bursts)

    def pair(
        self, base: list[wire.BoostOrder], trial: list[wire.BoostOrder], loads: bool = False
    ) -> Generator[None, Tick, float]:
        """Log-ratio of two neighbouring blocks, in the order A B B A, so every other one needs no
        switch.

        NaN if a loss was not finite or a call raised: `broken_by_trial` says in which block.
        """
        self.broken_by_trial = self._was_sound and self.last_on(trial)
        if not self.machinery.sound():
            return math.nan
        if self._flip:
            order = [trial, base] if self.last_on(trial) else [base, trial]
        else:
            order = [base, trial] if self._random.random() < 0.5 else [trial, base]
        self._flip = not self._flip
        seconds: dict[int, float] = {}
        for on in order:
            block = yield from self.block(on, loads)
            seconds[id(on)] = block.seconds
            if not self.machinery.sound():
                self.broken_by_trial = self._was_sound and on is trial
                return math.nan
        return self._ratio(base, seconds[id(base)], seconds[id(trial)], loads)

    def first_pair(
        self, base: list[wire.BoostOrder], trial: list[wire.BoostOrder], written: list[float]
    ) -> Generator[None, Tick, float]:
        """Like `pair`, with the units that have just run as written as its first block.

        written: the seconds of these units. Used for long units only: short ones are cheap to
        repeat.
        """
        unit_s = self.state.written_s
        too_few = float(len(written) < 2 or _disturbed(written))
        long = unit_s >= NO_SKIP_S and not self.accelerated
        if base or not long or self.machinery.agree(too_few, "max"):
            return (yield from self.pair(base, trial))
        self.broken_by_trial = False
        if not self.machinery.sound():
            return math.nan
        base_s = self.machinery.agree(statistics.fmean(written), "max")
        block = yield from self.block(trial)
        if not self.machinery.sound():
            self.broken_by_trial = self._was_sound
            return math.nan
        self._flip = True
        return self._ratio(base, base_s, block.seconds, False)

    def _ratio(
        self, base: list[wire.BoostOrder], base_s: float, trial_s: float, loads: bool
    ) -> float:
        if not base:
            self.state.written_s = base_s
        self._lose(self._units(loads) * (trial_s - base_s))
        return math.log(base_s / trial_s) if base_s > 0 and trial_s > 0 else math.nan

    def last_on(self, orders: Sequence[wire.BoostOrder]) -> bool:
        """Whether exactly these are on."""
        return self.machinery.on() == list(orders)

    def block(
        self, on: Sequence[wire.BoostOrder], loads: bool = False
    ) -> Generator[None, Tick, Block]:
        """One block under these boosts.

        A disturbed one is repeated until two are alike, as the program itself may have long steps
        now and then. What comes from outside only adds time, so the shortest counts.
        """
        skip = self.switch(on)
        if skip:
            self._before = None
        if loads and (skip or self._begun):
            # Before the first block, too: workers were just started, to see whether they can be.
            skip += 2 + self.machinery.buffered()
        elif self.state.now_s >= NO_SKIP_S:
            skip = 0
        self._begun = False
        units = self._units(loads)
        clock = self.machinery.synchronized_clock if self.accelerated else None
        blocks: list[Block] = []
        for _ in range(MOST_BLOCKS):
            recompiles = self.machinery.recompiles
            block = yield from collect(units, skip, self.sizes, clock)
            compiled = bool(
                self.machinery.agree(float(self.machinery.recompiles != recompiles), "max")
            )
            disturbed = not loads and (block.disturbed or compiled)
            blocks.append(replace(block, seconds=self.machinery.agree(block.seconds, "max")))
            if not self.machinery.agree(float(disturbed), "first"):
                blocks = blocks[-1:]
                break
            shortest, *longer = sorted(block.seconds for block in blocks)
            if longer and longer[0] < ALIKE * shortest:
                break
            skip = SETTLE_MOST if compiled else 0
        # Code that is compiled again and again is the boost's own doing.
        block = blocks[-1] if compiled else min(blocks, key=lambda block: block.seconds)
        self._compare_alike(on, block)
        step = self.machinery.steps()
        self.machinery.tell(
            wire.BlockRun(
                max(1, step - block.units + 1),
                block.units,
                1000 * block.seconds,
                tuple(order.id for order in on),
            )
        )
        return block

    def _compare_alike(self, on: Sequence[wire.BoostOrder], block: Block) -> None:
        """In two successive pairs (A B, B A) the middle blocks are alike, so their difference is
        noise.

        The machine may have been unsteady at the program's start, or only now. Until such blocks
        exist, the spread of the units (episodes of any length) is used.
        """
        before, self._before = self._before, (list(on), block.seconds)
        if before is not None and before[0] == list(on) and min(block.seconds, before[1]) > 0:
            self._alike.append(math.log(before[1] / block.seconds))
        if len(self._alike) >= TELLING:
            self.state.noise = decide.noise(list(self._alike))
        else:
            self._spreads.append(self.machinery.agree(block.spread, "max"))
            own = math.sqrt(2) * statistics.median(self._spreads)
            least = decide.PRIOR.deviation
            self.state.noise = decide.Noise(max(least, own), decide.PRIOR.freedom)

    def switch(self, on: Sequence[wire.BoostOrder]) -> int:
        """Switch to exactly these boosts; returns the number of units to skip."""
        if self.last_on(on):
            return 0
        self.machinery.switch(on)
        return SKIP
