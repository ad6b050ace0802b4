"""What the program does to itself, measured anew only as fast as its training changes it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from flatout_agent.boost import Boost
from flatout_agent.live.candidates import Candidate, highest_risk
from flatout_agent.live.guard import Yardstick

GROWN = 1.5
"""A yardstick is good until the program has taken so many times the steps that it had then ..."""
AT_LEAST = 10
"""... and so many more."""


class Asked(NamedTuple):
    """What a yardstick is for."""

    redraws: bool
    """A boost draws other random numbers."""
    rounds: bool
    rounded_by: float
    """What factors are rounded by already, by boosts that are on; 0: they are not."""


def asked(items: Sequence[Candidate], on: Mapping[str, Boost]) -> Asked:
    """For these boosts, in a program under those that are on."""
    others = [boost for name, boost in on.items() if name not in {item.id for item in items}]
    return Asked(
        any(item.boost.redraws for item in items),
        highest_risk(items) != "exact",
        max((boost.rounds_by for boost in others), default=0.0),
    )


class Yardsticks:
    """By model, and by what they were asked for."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[
            torch.nn.Module, dict[Asked, tuple[int, Yardstick]]
        ] = weakref.WeakKeyDictionary()
        self.reused = False
        """The last one came from before."""

    def add(self, model: torch.nn.Module, asked: Asked, step: int, own: Yardstick) -> None:
        """Remember what was measured after so many steps."""
        self._known.setdefault(model, {})[asked] = (step, own)
        self.reused = False

    def get(self, model: torch.nn.Module, asked: Asked, step: int) -> Yardstick | None:
        """What is known of this model; None: it must be measured."""
        own = self._good(model, asked, step)
        self.reused = self.reused or own is not None
        return own

    def cover(self, models: Iterable[torch.nn.Module], asked: Asked, step: int) -> bool:
        """Whether there is one for each of these models."""
        return all(self._good(model, asked, step) is not None for model in models)

    def forget(self) -> None:
        """Measure all of them anew."""
        self._known.clear()
        self.reused = False

    def _good(self, model: torch.nn.Module, asked: Asked, step: int) -> Yardstick | None:
        taken, own = self._known.get(model, {}).get(asked, (0, None))
        return own if step <= GROWN * taken + AT_LEAST else None
