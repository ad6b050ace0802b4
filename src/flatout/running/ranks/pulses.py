"""How far each rank of a run is and how long it has taken no step, read from the rings."""

from __future__ import annotations

import statistics
from collections import deque
from pathlib import Path

from flatout.running.one.ring import Ring, rings

LONGEST_LOOK_S = 2.0
"""Longer gaps between two looks do not count: flatout itself was stopped (Ctrl-Z)."""
KEPT_STEPS = 200


class RankPulse:
    """The progress of one process."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.step: int | None = None
        """Its last step."""
        self.time_s = 0.0
        """When that step ended (Unix time)."""
        self.still_s = 0.0
        """Time since then during which the ring was watched."""
        self.durations: deque[float] = deque(maxlen=KEPT_STEPS)

    def look(self, elapsed_s: float) -> None:
        """Account for new steps. elapsed_s: since the last look."""
        steps = self.ring.new()
        self.still_s = 0.0 if steps else self.still_s + min(elapsed_s, LONGEST_LOOK_S)
        for step in steps:
            self.step, self.time_s = step.step, step.time_s
            if step.duration_s > 0:
                self.durations.append(step.duration_s)


class RankPulses:
    """The progress of all ranks of a run."""

    def __init__(self, folder: Path | None) -> None:
        """folder: where their rings are, or None if they write none."""
        self._folder = folder
        self._pulses: dict[Path, RankPulse] = {}

    def look(self, elapsed_s: float) -> None:
        """Look at all rings. elapsed_s: since the last look."""
        for path in rings(self._folder) if self._folder is not None else ():
            if path not in self._pulses:
                try:
                    self._pulses[path] = RankPulse(Ring(path))
                except (OSError, ValueError):  # just being made
                    continue
        for pulse in self._pulses.values():
            pulse.look(elapsed_s)

    @property
    def by_rank(self) -> dict[int, RankPulse]:
        """The process of each rank that took a step last: a rank may start others, to evaluate."""
        ordered = sorted(self._pulses.values(), key=lambda pulse: pulse.time_s)
        return {pulse.ring.header.rank: pulse for pulse in ordered}

    def step(self, rank: int) -> int | None:
        """The rank's last step, or None if unknown."""
        pulse = self.by_rank.get(rank)
        return pulse.step if pulse is not None else None

    @property
    def step_s(self) -> float | None:
        """The median duration of a step, or None if unknown."""
        durations = [second for pulse in self._pulses.values() for second in pulse.durations]
        return statistics.median(durations) if durations else None
