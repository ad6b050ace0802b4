"""Noise floors of the program, measured again only as fast as training changes them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from flatout_agent.boost import Boost
from flatout_agent.live.candidates import Candidate, highest_risk
from flatout_agent.live.guard import NoiseFloor

GROWN = 1.5
"""A noise floor is valid until the program has taken this many times the steps that it had taken
then ..."""
AT_LEAST = 10
"""... and so many more."""


class NoiseFloorPurpose(NamedTuple):
    """The purpose of a noise floor."""

    redraws: bool
    """A boost draws other random numbers."""
    rounds: bool
    rounded_by: float
    """The rounding of factors by boosts that are on, or 0 if none rounds."""


def purpose_of(
    judged: Sequence[Candidate], in_question: Sequence[Candidate], active: Mapping[str, Boost]
) -> NoiseFloorPurpose:
    """The purpose of a verdict on `judged`, in a program under the active boosts except those in
    question.
    """
    names = {candidate.id for candidate in in_question}
    return NoiseFloorPurpose(
        any(candidate.boost.redraws for candidate in judged),
        highest_risk(judged) != "exact",
        max((boost.rounds_by for name, boost in active.items() if name not in names), default=0.0),
    )


class NoiseFloors:
    """Noise floors by model and purpose."""

    def __init__(self) -> None:
        self._noise_floors: weakref.WeakKeyDictionary[
            torch.nn.Module, dict[NoiseFloorPurpose, tuple[int, NoiseFloor]]
        ] = weakref.WeakKeyDictionary()
        self.reused = False
        """Since this was last set, a noise floor that was measured in an earlier step was used."""

    def add(
        self, model: torch.nn.Module, purpose: NoiseFloorPurpose, step: int, noise_floor: NoiseFloor
    ) -> None:
        """Store what was measured after this many steps."""
        self._noise_floors.setdefault(model, {})[purpose] = (step, noise_floor)

    def get(
        self, model: torch.nn.Module, purpose: NoiseFloorPurpose, step: int
    ) -> NoiseFloor | None:
        """The valid noise floor of this model, or None if it must be measured."""
        noise_floor = self._good(model, purpose, step)
        if noise_floor is not None and self._noise_floors[model][purpose][0] < step:
            self.reused = True
        return noise_floor

    def known(
        self, model: torch.nn.Module, purpose: NoiseFloorPurpose, step: int
    ) -> NoiseFloor | None:
        """A noise floor of this model for another purpose that also holds for this one."""
        for other in self._noise_floors.get(model, {}):
            if other.rounded_by == purpose.rounded_by:
                noise_floor = self._good(model, other, step)
                if noise_floor is not None:
                    return noise_floor
        return None

    def cover(
        self, models: Iterable[torch.nn.Module], purpose: NoiseFloorPurpose, step: int
    ) -> bool:
        """Whether there is one for each of these models."""
        return all(self._good(model, purpose, step) is not None for model in models)

    def forget(self) -> None:
        """Drop all of them."""
        self._noise_floors.clear()
        self.reused = False

    def _good(
        self, model: torch.nn.Module, purpose: NoiseFloorPurpose, step: int
    ) -> NoiseFloor | None:
        step_then, noise_floor = self._noise_floors.get(model, {}).get(purpose, (0, None))
        return noise_floor if step <= GROWN * step_then + AT_LEAST else None
