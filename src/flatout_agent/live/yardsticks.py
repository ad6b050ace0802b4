"""What the program does to itself, measured anew only as fast as its training changes it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from flatout_agent.live.guard import Yardstick

GROWN = 1.5
"""A yardstick is good until the program has taken so many times the steps that it had then ..."""
AT_LEAST = 10
"""... and so many more."""


class Yardsticks:
    """By model, and by what they were asked for."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[
            Any, dict[tuple[bool, bool], tuple[int, Yardstick]]
        ] = weakref.WeakKeyDictionary()
        self.reused = False
        """The last one came from before."""

    def add(self, model: Any, asked: tuple[bool, bool], step: int, own: Yardstick) -> None:
        """Remember what was measured after so many steps."""
        self._known.setdefault(model, {})[asked] = (step, own)
        self.reused = False

    def get(self, model: Any, asked: tuple[bool, bool], step: int) -> Yardstick | None:
        """What is known of this model; None: it must be measured."""
        own = self._good(model, asked, step)
        self.reused = self.reused or own is not None
        return own

    def cover(self, models: Iterable[Any], asked: tuple[bool, bool], step: int) -> bool:
        """Whether there is one for each of these models."""
        return all(self._good(model, asked, step) is not None for model in models)

    def forget(self) -> None:
        """Measure all of them anew."""
        self._known.clear()
        self.reused = False

    def _good(self, model: Any, asked: tuple[bool, bool], step: int) -> Yardstick | None:
        taken, own = self._known.get(model, {}).get(asked, (0, None))
        return own if step <= GROWN * taken + AT_LEAST else None
