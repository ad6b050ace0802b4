"""The last minutes of each figure that is drawn as a curve, collected from frames."""

from __future__ import annotations

from collections import deque

from flatout.nouns.frame import Frame

KEPT = 900


class Curves:
    """Bounded; each hundred frames, series that are no longer mentioned are dropped."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], deque[float | None]] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._frames = 0

    def add(self, frame: Frame) -> None:
        """One more frame."""
        self._frames += 1
        for machine in frame.machines:
            if machine.cpu_cores is not None and machine.cores:
                self._put(machine.hostname, "cores", machine.cpu_cores / machine.cores)
            for gpu in machine.gpus:
                self._put(f"{machine.hostname} GPU {gpu.index}", "utilization", gpu.utilization)
        for job in frame.jobs:
            if job.state != "ended":
                self._put(job.id, "loss", job.loss)
        if self._frames % 100 == 0:
            for key in [key for key, at in self._seen.items() if at < self._frames - KEPT]:
                del self._series[key], self._seen[key]

    def of(self, subject: str, figure: str) -> list[float | None]:
        """The values of one figure, oldest first."""
        return list(self._series.get((subject, figure), ()))

    def _put(self, subject: str, figure: str, value: float | None) -> None:
        key = subject, figure
        self._series.setdefault(key, deque(maxlen=KEPT)).append(value)
        self._seen[key] = self._frames
