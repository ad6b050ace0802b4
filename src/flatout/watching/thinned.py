"""Samples of one a second: all of 15 minutes, and one in ten of two hours before."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
RECENT = 900
KEPT = 660
ONE_IN = 10


class Thinned(Generic[T]):
    """A history within bounds, oldest first."""

    def __init__(self) -> None:
        self._recent: deque[T] = deque()
        self._older: deque[T] = deque(maxlen=KEPT)
        self._count = 0

    def add(self, sample: T) -> list[T]:
        """One more; returns all that is kept."""
        self._recent.append(sample)
        if len(self._recent) > RECENT:
            oldest = self._recent.popleft()
            if self._count % ONE_IN == 0:
                self._older.append(oldest)
            self._count += 1
        return [*self._older, *self._recent]
