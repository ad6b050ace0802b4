"""A boost's identity, the result of `apply`, and how a boost declines.

The boosts themselves, one per file, and the interface of such a file are in `boosts`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Undo = Callable[[], None]

MOST_SPEEDUP = 20.0
"""No speed-up beyond this is promised, as part of a step always remains."""


class Risk(str, enum.Enum):
    """What a boost may change."""

    EXACT = "exact"  # the same arithmetic, at most reordered
    ROUNDING = "rounding"  # precision


class Moment(str, enum.Enum):
    """When `apply` is called, and with what as `target`."""

    START = "start"  # torch has just been imported; target: the torch module
    LOADER = "loader"  # a DataLoader is about to be iterated for the first time; target: it
    MODEL = "model"  # a root model is about to be called in training for the first time; target: it
    FROZEN = "frozen"  # a model that is not trained is called in a second step; target: it
    OPTIMIZER = "optimizer"  # an optimizer is about to take its first step; target: it


class Switch(str, enum.Enum):
    """When a running program can be switched from one state of the boost to the other.

    A boost with variables of its own (`environment`) waits for the next start, whatever this says.
    """

    STEP = "step"  # between two steps: `apply` and `undo` leave the program's state as it was
    ITERATOR = "iterator"  # when a loader's iterator can be handed over
    START = "start"  # only when a process starts


class Declined(Exception):  # noqa: N818 - a decision with its reason, not an error
    """The boost cannot be applied to this target; the message is the reason shown to the user."""


@dataclass(frozen=True)
class Boost:
    """A boost's identity; its id is its file's name."""

    since: str
    risk: Risk
    moment: Moment
    switch: Switch = Switch.STEP
    params: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Parameter name -> values worth trying, the default first."""
    conflicts: tuple[str, ...] = ()
    """Boosts that cannot be on together with this one (naming it on one side is enough)."""
    covered_by: tuple[str, ...] = ()
    """Boosts that leave nothing for this one to gain; it is not tried beside them."""
    redraws: bool = False
    """Whether the program draws other random numbers under it (augmentation, dropout)."""
    needs: str = ""
    """A boost, or the script's own autocast, without which it does nothing."""
    compiles: bool = False
    """Whether its first steps are slow because something is compiled or captured."""
    records: bool = False
    """Whether calls are only recorded, not compiled, which takes a second or two."""
    fills: bool = False
    """Whether it gains nothing until its cache has been filled."""
    tried_alone: bool = False
    """Whether its promise may be far off, so that it is compared by itself."""
    cuts_outputs: bool = False
    """Whether a model's outputs may differ where the loss does not use them. It is exact only in
    programs that do not use them, so it is never kept without a comparison."""
    outside_calls: bool = False
    """Whether it may act outside the model's call, as on the loss: whether it takes hold is not
    known after a call."""
    rounds_by: float = 0.0
    """Largest relative error of rounding the factors of products under it, or 0 if they are not
    rounded."""

    @property
    def loads(self) -> bool:
        """Whether it changes how batches are loaded, so those that workers have ready show nothing
        of it.
        """
        return self.fills or self.switch is Switch.ITERATOR


def _engaged_by_default() -> tuple[bool, str] | None:
    return (True, "")


def _at_once() -> int:
    return 0


@dataclass(frozen=True)
class Applied:
    """The result of `apply`: how to undo it, and whether it really took hold."""

    undo: Undo
    engaged: Callable[[], tuple[bool, str] | None] = _engaged_by_default
    """Called when the trial or the program ends: (took hold, detail). None if that cannot be
    known."""
    steps_to_ready: Callable[[], int] = _at_once
    """Steps, as far as known, that must pass under it before it can show its gain."""


def whole_speedup(*parts: tuple[float, float]) -> float:
    """The speed-up of the whole, by Amdahl's law.

    A part is (its share of the time, its speed-up); the rest stays as it is.
    """
    gone = sum(share * (1 - 1 / factor) for share, factor in parts)
    return 1.0 / max(1.0 - gone, 1.0 / MOST_SPEEDUP)
