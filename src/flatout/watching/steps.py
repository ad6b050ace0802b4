"""Steps from a ring, kept within bounds: what rules and screens need to know about a rank."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from statistics import median

from flatout.nouns.job_sample import PulseStep
from flatout.watching.rules import Pause, RankHistory, TreeSample
from flatout.watching.thinned import CLOCK_BACK_S, Thinned
from flatout_agent.wire import pulse

MOST_STEPS = 20_000
KEPT_S = 900.0
RECENT_S = 10.0
LEAST_RECENT = 5
EARLY = range(50, 251)
"""Steps that show a run's initial speed."""
KINDS = (pulse.EVALUATED, pulse.SAVED, pulse.EPOCH_BEGAN)
PAUSES = pulse.EVALUATED | pulse.SAVED | pulse.EPOCH_BEGAN
WARM_UP = 20
"""Steps in which caches fill and kernels are chosen."""
MOST_GAPS = 2000
MOST_SHAPES = 10_000
MOST_NEW_SHAPES = 2000


class RankSteps:
    """One rank's steps and the memory of its processes, oldest first."""

    def __init__(self, rank: int, pid: int, world_size: int = 1) -> None:
        self.steps: deque[PulseStep] = deque(maxlen=MOST_STEPS)
        self.history = RankHistory(rank, pid, world_size=world_size, steps=self.steps)
        self.last_loss: float | None = None
        self.fresh: list[PulseStep] = []
        """Steps since the last call of `take_fresh`."""
        self._trees: Thinned[TreeSample] = Thinned()
        self._gaps: deque[float] = deque(maxlen=MOST_GAPS)
        self._shapes: set[int] = set()
        self._new_shapes: deque[float] = deque(maxlen=MOST_NEW_SHAPES)
        self.history.new_shapes_s = self._new_shapes
        self._early: list[PulseStep] = []
        self._early_clocks: list[float] = []

    def add(self, steps: Iterable[PulseStep]) -> None:
        """Add more steps, in order. If the clock was set back, earlier ones are dropped."""
        for step in steps:
            if self.steps and step.time_s < self.steps[-1].time_s - CLOCK_BACK_S:
                self.steps.clear()
                self._new_shapes.clear()
            self._count(step)
            self.steps.append(step)
            self.fresh.append(step)
        while self.steps and self.steps[-1].time_s - self.steps[0].time_s > KEPT_S:
            self.steps.popleft()
        del self.fresh[:-MOST_STEPS]

    def add_tree(self, tree: TreeSample) -> None:
        """What its processes use now."""
        self.history.trees = self._trees.add(tree)

    def add_clocks(self, clocks_mhz: Sequence[float]) -> None:
        """The current clocks of its GPUs; those of early steps are the later ones' reference."""
        if self.steps and self.steps[-1].step in EARLY:
            self._early_clocks += clocks_mhz
            self.history.early_clock_mhz = (
                median(self._early_clocks) if self._early_clocks else None
            )

    def take_fresh(self, most: int) -> tuple[PulseStep, ...]:
        """The steps since the last call, at most `most` of them, evenly spaced."""
        fresh, self.fresh = self.fresh, []
        return evenly(fresh, most)

    def recent(self) -> list[PulseStep]:
        """The steps of the ten seconds before the last step, at least five of them."""
        if not self.steps:
            return []
        end = self.steps[-1].time_s
        chosen: list[PulseStep] = []
        for step in reversed(self.steps):
            if len(chosen) >= LEAST_RECENT and step.time_s < end - RECENT_S:
                break
            chosen.append(step)
        return chosen[::-1]

    def _count(self, step: PulseStep) -> None:
        history = self.history
        if step.loss is not None:
            self.last_loss = step.loss
        if history.first_step_scale is None:
            history.first_step_scale = step.loss_scale
        if step.flags & pulse.EPOCH_BEGAN:
            history.epochs += 1
        if step.shapes is not None and step.shapes not in self._shapes:
            self._new_shapes.append(step.time_s)
            if len(self._shapes) < MOST_SHAPES:
                self._shapes.add(step.shapes)
        if not self.steps or step.duration_s <= 0:
            return
        if step.flags & PAUSES:
            for kind in KINDS:
                if step.flags & kind:
                    pause = self.history.pauses.setdefault(kind, Pause())
                    pause.longest_s = max(pause.longest_s, step.duration_s)
                    apart = step.step - pause.last_step
                    if step.step > WARM_UP and apart > 0:  # many evaluate once before they train
                        pause.least_steps = min(apart, pause.least_steps or apart)
                    pause.last_step = step.step
        elif not step.flags & (pulse.COMPILED | pulse.TUNING) and step.step > WARM_UP:
            history.longest_gap_s = max(history.longest_gap_s, step.duration_s)
            self._gaps.append(step.duration_s)
            if len(self._gaps) % 50 == 0 or len(self._gaps) < 50:
                ordered = sorted(self._gaps)
                history.p99_gap_s = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        plain = not step.flags & (PAUSES | pulse.COMPILED | pulse.TUNING | pulse.SKIPPED)
        if step.step in EARLY and plain:
            self._early.append(step)
        elif step.step > EARLY[-1] and self._early:
            shapes, _ = Counter(early.shapes for early in self._early).most_common(1)[0]
            same = [early for early in self._early if early.shapes == shapes]
            self.history.early_step_s = median(early.duration_s for early in same)
            self.history.early_wait_s = usual_wait_s(same)
            self.history.early_shapes = shapes
            self._early = []


def evenly(steps: Sequence[PulseStep], most: int) -> tuple[PulseStep, ...]:
    """At most this many of the steps, evenly spaced."""
    if len(steps) <= most:
        return tuple(steps)
    stride = (len(steps) - 1) / (most - 1)
    return tuple(steps[round(index * stride)] for index in range(most))


def step_s(steps: Sequence[PulseStep]) -> float | None:
    """The median duration of these steps."""
    durations = [step.duration_s for step in steps if step.duration_s > 0]
    return median(durations) if durations else None


def wait_share(steps: Sequence[PulseStep]) -> float | None:
    """The share of these steps spent waiting for the loader, or None if not known."""
    timed = [step for step in steps if step.duration_s > 0]
    total = math.fsum(step.duration_s for step in timed)
    waits = [step.wait_s for step in timed if step.wait_s is not None]
    return min(1.0, math.fsum(waits) / total) if total and len(waits) == len(timed) else None


def usual_wait_s(steps: Sequence[PulseStep]) -> float | None:
    """The median wait of these steps, or None if any is unknown."""
    waits = [step.wait_s for step in steps if step.wait_s is not None]
    return median(waits) if waits and len(waits) == len(steps) else None


def samples_per_s(steps: Sequence[PulseStep]) -> float | None:
    """Samples of these steps over their time, or None if not known."""
    timed = [step for step in steps if step.duration_s > 0]
    total = math.fsum(step.duration_s for step in timed)
    samples = [step.samples for step in timed]
    if not total or not samples or any(count is None for count in samples):
        return None
    return sum(count or 0 for count in samples) / total
