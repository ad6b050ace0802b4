"""Measure pairs of neighbouring blocks in the running program."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace

from flatout_agent import wire
from flatout_agent.live import blocks, paired
from flatout_agent.live.blocks import Block, Sizes, Tick
from flatout_agent.live.budget import Budget
from flatout_agent.live.machinery import Machinery, State

REMEMBERED, TELLING = 8, 3
"""Pairs of like neighbouring blocks that give the noise: the last ones, at most and at least."""
SKIP = 1
"""Units not counted after a switch: caches are cold."""
SETTLE_MOST = 12
"""The same where something was compiled meanwhile."""


class Pairs:
    """Switches the program between two sets of boosts and times the blocks."""

    def __init__(self, machinery: Machinery, state: State, budget: Budget, seed: int) -> None:
        self.machinery, self.state, self.budget = machinery, state, budget
        self.sizes = Sizes()
        self.accelerated = False
        """The device runs behind the host, which waits for it at both ends of a block."""
        self.broken_by_trial = False
        self._was_sound = True
        self._before: tuple[list[wire.BoostOrder], float] | None = None
        """The block that has just ended: its boosts, and seconds of a unit."""
        self._alike: deque[float] = deque(maxlen=REMEMBERED)
        """Log-ratios of neighbouring blocks under the same boosts."""
        self._random = random.Random(seed)
        self._flip = False

    def begin(self) -> None:
        """Before the first step under another boost: what is unsound by now is not its fault."""
        self._was_sound = self.agreed(self.machinery.sound())

    def pair(
        self,
        base: list[wire.BoostOrder],
        trial: list[wire.BoostOrder],
        floor_s: float = blocks.LEAST_S,
        loads: bool = False,
    ) -> Generator[None, Tick, float]:
        """Log-ratio of two neighbouring blocks; A B B A, so that every other needs no switch.

        NaN where a loss was not finite or a call raised: `broken_by_trial` tells in which of them.
        """
        self.broken_by_trial = self._was_sound and self.last_on(trial)
        if not self.agreed(self.machinery.sound()):
            return math.nan
        if self._flip:
            order = [trial, base] if self.last_on(trial) else [base, trial]
        else:
            order = [base, trial] if self._random.random() < 0.5 else [trial, base]
        self._flip = not self._flip
        seconds: dict[int, float] = {}
        for on in order:
            block = yield from self.block(on, self.state.now_s, floor_s, loads=loads)
            seconds[id(on)] = block.seconds
            if not self.agreed(self.machinery.sound()):
                self.broken_by_trial = self._was_sound and on is trial
                return math.nan
        base_s, trial_s = seconds[id(base)], seconds[id(trial)]
        if not self.state.kept and not base:
            self.state.written_s = base_s
        units = blocks.length(self.state.now_s, floor_s)
        self.budget.lose(units * (trial_s - base_s))
        return math.log(base_s / trial_s) if base_s > 0 and trial_s > 0 else math.nan

    def last_on(self, orders: Sequence[wire.BoostOrder]) -> bool:
        return self.machinery.on() == list(orders)

    def block(
        self,
        on: Sequence[wire.BoostOrder],
        unit_s: float,
        floor_s: float,
        learn: bool = False,
        loads: bool = False,
    ) -> Generator[None, Tick, Block]:
        """One block under these boosts; one that was disturbed is taken again, once."""
        skip = self.switch(on)
        if skip or learn:
            self._before = None
        if loads and skip:
            skip += 2 + self.machinery.buffered()
        units = int(self.machinery.agree(blocks.length(unit_s, floor_s), "first"))
        clock = self.machinery.synchronized_clock if self.accelerated else None
        sizes = self.sizes
        for last in (False, True):
            recompiles = self.machinery.recompiles
            block = yield from _watched(blocks.collect(units, skip, sizes, clock), sizes, learn)
            compiled = self.machinery.recompiles != recompiles
            disturbed = not loads and (block.disturbed or compiled)
            if last or not self.agreed(disturbed):
                break
            skip = SETTLE_MOST if compiled else 0
        block = replace(block, seconds=self.machinery.agree(block.seconds, "max"))
        self._compare_alike(on, block.seconds)
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

    def _compare_alike(self, on: Sequence[wire.BoostOrder], seconds: float) -> None:
        """Of two pairs in turn (A B, B A) the middle blocks are alike: what differs is noise."""
        before, self._before = self._before, (list(on), seconds)
        if before is not None and before[0] == list(on) and min(seconds, before[1]) > 0:
            self._alike.append(math.log(before[1] / seconds))

    def noise(self) -> paired.Noise | None:
        """The program against itself in the last pairs; None: too few to tell.

        The machine may have been restless at the program's start, or be so only now.
        """
        return paired.noise(list(self._alike)) if len(self._alike) >= TELLING else None

    def forget_noise(self) -> None:
        """Start over: the noise has just been measured on its own."""
        self._alike.clear()

    def switch(self, on: Sequence[wire.BoostOrder]) -> int:
        """Switch to exactly these boosts; returns how many units to leave out of the count."""
        if self.machinery.on() == list(on):
            return 0
        self.machinery.switch(on)
        return SKIP

    def agreed(self, answer: bool) -> bool:
        """The first rank's answer, where there are several ranks: they all do the same."""
        return bool(self.machinery.agree(float(answer), "first"))


def _watched(
    collection: Generator[None, Tick, Block], sizes: Sizes, learn: bool
) -> Generator[None, Tick, Block]:
    """`collection`; with `learn`, `sizes` learns from each tick how time grows with size."""
    try:
        next(collection)
        while True:
            tick = yield
            if learn and tick.clean:
                sizes.add(tick)
            collection.send(tick)
    except StopIteration as done:
        block: Block = done.value
        return block
