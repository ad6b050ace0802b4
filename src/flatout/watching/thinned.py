"""Samples taken once a second: all of the last 15 minutes, one in ten for two hours before.

If the clock was set back, the history starts again, because rules look at spans of time.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """Anything that was observed at one moment."""

    @property
    def time_s(self) -> float: ...


T = TypeVar("T", bound=Timed)
RECENT = 900
KEPT = 660
ONE_IN = 10
CLOCK_BACK_S = 1.0
"""A time this far before the last one shows that the clock was set back."""


class Thinned(Generic[T]):
    """A bounded history, oldest first."""

    def __init__(self) -> None:
        self._recent: deque[T] = deque()
        self._older: deque[T] = deque(maxlen=KEPT)
        self._count = 0

    def add(self, sample: T) -> list[T]:
        """Add one more; returns all that is kept."""
        if self._recent and sample.time_s < self._recent[-1].time_s - CLOCK_BACK_S:
            self._recent.clear()
            self._older.clear()
        self._recent.append(sample)
        if len(self._recent) > RECENT:
            oldest = self._recent.popleft()
            if self._count % ONE_IN == 0:
                self._older.append(oldest)
            self._count += 1
        return [*self._older, *self._recent]
