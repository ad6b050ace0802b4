"""How far the program differs from itself, measured again only as fast as training changes it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from flatout_agent.boost import Boost
from flatout_agent.live.candidates import Candidate, highest_risk
from flatout_agent.live.guard import Yardstick

GROWN = 1.5
"""A yardstick is valid until the program has taken this many times the steps it had then ..."""
AT_LEAST = 10
"""... and so many more."""


class YardstickPurpose(NamedTuple):
    """What a yardstick is for."""

    redraws: bool
    """A boost draws other random numbers."""
    rounds: bool
    rounded_by: float
    """What factors are rounded by already, by boosts that are on; 0: they are not."""


def purpose_of(
    judged: Sequence[Candidate], in_question: Sequence[Candidate], active: Mapping[str, Boost]
) -> YardstickPurpose:
    """For a verdict on `judged`, in a program under the active ones but those in question."""
    names = {candidate.id for candidate in in_question}
    return YardstickPurpose(
        any(candidate.boost.redraws for candidate in judged),
        highest_risk(judged) != "exact",
        max((boost.rounds_by for name, boost in active.items() if name not in names), default=0.0),
    )


class Yardsticks:
    """By model and purpose."""

    def __init__(self) -> None:
        self._yardsticks: weakref.WeakKeyDictionary[
            torch.nn.Module, dict[YardstickPurpose, tuple[int, Yardstick]]
        ] = weakref.WeakKeyDictionary()
        self.reused = False
        """The last check used a yardstick that was measured before."""

    def add(
        self, model: torch.nn.Module, purpose: YardstickPurpose, step: int, yardstick: Yardstick
    ) -> None:
        """Remember what was measured after this many steps."""
        self._yardsticks.setdefault(model, {})[purpose] = (step, yardstick)
        self.reused = False

    def get(self, model: torch.nn.Module, purpose: YardstickPurpose, step: int) -> Yardstick | None:
        """What is known of this model; None: it must be measured."""
        yardstick = self._good(model, purpose, step)
        self.reused = self.reused or yardstick is not None
        return yardstick

    def known(
        self, model: torch.nn.Module, purpose: YardstickPurpose, step: int
    ) -> Yardstick | None:
        """What is known of this model for another purpose, and holds for this one as well."""
        for other in self._yardsticks.get(model, {}):
            if other.rounded_by == purpose.rounded_by:
                yardstick = self._good(model, other, step)
                if yardstick is not None:
                    return yardstick
        return None

    def cover(
        self, models: Iterable[torch.nn.Module], purpose: YardstickPurpose, step: int
    ) -> bool:
        """Whether there is one for each of these models."""
        return all(self._good(model, purpose, step) is not None for model in models)

    def forget(self) -> None:
        """Drop all of them."""
        self._yardsticks.clear()
        self.reused = False

    def _good(
        self, model: torch.nn.Module, purpose: YardstickPurpose, step: int
    ) -> Yardstick | None:
        step_then, yardstick = self._yardsticks.get(model, {}).get(purpose, (0, None))
        return yardstick if step <= GROWN * step_then + AT_LEAST else None
