"""Decides when a trial's warm-up is over and when its measured window is complete.

Warm-up ends when step times are stable, not after a fixed number of steps: compilation, cuDNN's
search, allocator growth and worker start-up all last as long as they last.
"""

from __future__ import annotations

import statistics
from typing import Literal

from flatout_agent import wire

LEAST_WARMUP = 2
LOCKSTEP_STEPS = 8
"""Steps of warm-up and of a window if several ranks have to agree without communicating."""
STABLE = 0.15
"""Step times are stable if the last ones agree with those before within this share."""
FILLING_S = 20.0
"""The longest wait for a cache; the search also waits for it."""
STEPS_AFTER_GATE = 1
"""Steps not counted after a pause: caches are cold."""


class TrialWindow:
    """The phases of a trial: warmup, window (once, or once per gate)."""

    def __init__(self, orders: wire.TrialOrders, lockstep: bool = False) -> None:
        """lockstep: several ranks take each step together, so none may decide by its own clock."""
        self.orders = orders
        self.lockstep = lockstep
        self.number = 0
        self.complete = False
        self._measuring = False
        self._warmup: list[float] = []
        self._warmup_s = 0.0
        self._recompiles = 0
        self._began = 0.0
        self._steps = 0
        self._skip = 0
        self.warm_until: int | None = None
        """The index of the warm-up's last step, or None to go by the times of steps."""
        self._asked: int | None = None

    def phase(self) -> Literal["warmup", "window"]:
        """The phase of the step that has just ended: warmup or window."""
        return "window" if self._measuring and not self._skip else "warmup"

    def begins(self, now: float, steps: int | None = None) -> None:
        """The window starts with the next step.

        steps: how many it has, or None to go by their times.
        """
        self._measuring = True
        self._asked = steps
        self._began = now
        self._steps = 0
        self._skip = STEPS_AFTER_GATE if self.orders.gates else 0

    def closes(self, now: float) -> bool:
        """Whether the step that has just ended is the window's last."""
        steps = self._steps + 1
        if self._asked is not None:
            return steps >= self._asked
        if self.lockstep:
            return steps >= max(self.orders.min_steps, LOCKSTEP_STEPS)
        long_enough = now - self._began >= self.orders.window_s
        return steps >= self.orders.max_steps or (steps >= self.orders.min_steps and long_enough)

    def step_ended(
        self, step: wire.StepTaken, closing: bool, buffered: int, recompiles: int, filling: bool
    ) -> bool:
        """Account for one step; returns True if a window should begin now.

        buffered: batches that loader workers may have ready, which make steps look fast.
        recompiles: how often torch.compile has recompiled so far.
        filling: an active boost caches what the program reads, and has not seen all of it yet.
        """
        if not self._measuring:
            warm = self._warm(step, buffered, recompiles)
            return warm and not (filling and not self.lockstep and self._warmup_s < FILLING_S)
        if self._skip:
            self._skip -= 1
            self._began += step.wall_s
            return False
        self._steps += 1
        if not closing:
            return False
        self.number += 1
        self._measuring = False
        self.complete = self.number >= max(1, self.orders.gates)
        return not self.complete

    def _warm(self, step: wire.StepTaken, buffered: int, recompiles: int) -> bool:
        if self.warm_until is not None:
            return step.index >= self.warm_until
        if self.lockstep:
            return step.index + 1 >= LOCKSTEP_STEPS + buffered
        if recompiles != self._recompiles:
            self._recompiles = recompiles
            self._warmup, self._warmup_s = [], 0.0
            return False
        self._warmup.append(step.train_s)
        self._warmup_s += step.wall_s
        if step.index + 1 < LEAST_WARMUP + buffered:
            return False
        return stable(self._warmup) or self._warmup_s > self.orders.warmup_max_s


def stable(times: list[float]) -> bool:
    """Whether the last times agree with those before them.

    Times come in bursts if loader workers deliver several batches at once, so halves are compared
    by their means, and single steps only if there are few.
    """
    if len(times) < 3:
        return False
    last = times[-3:]
    if max(last) <= (1 + STABLE) * min(last):
        return True
    half = min(len(times) // 2, 20)
    if half < 4:
        return False
    before, after = statistics.mean(times[-2 * half : -half]), statistics.mean(times[-half:])
    return abs(after - before) <= STABLE / 2 * before
