"""Boosts: one reversible speed-up that needs no edit, one per file.

The file's name (underscores for hyphens) is the boost's id. A boost module has

    BOOST = Boost(...)                            what it may change, when it is applied, parameters
    def applies(facts, params) -> str | None      why it does not apply to this job; None: it does
    def promise(facts, params) -> float           likely speed-up (1.3: 30 % faster), for order
    def apply(job, target, params) -> Applied     do it; raise Declined(reason) where it cannot be
    def by_hand(facts, params) -> str             plain PyTorch lines that do the same

and may have `environment(facts, params) -> dict[str, str]`: variables that must be set before the
process starts. `applies`, `promise`, `by_hand` and `environment` are pure and never import torch:
the host calls them too. `apply` runs in the user's process, where torch is loaded, and may import
torch inside the function. Where `undo` leaves something for another `apply` in the same program (a
tuning switches on and off again and again), `forget(job)` lets go of it. The module docstring is
the boost's documentation page, with the headings
What it does / Why it is faster / When it does nothing / What it may change / How it is undone /
References.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

Undo = Callable[[], None]


class Risk(str, enum.Enum):
    """What a boost may change."""

    EXACT = "exact"  # the same arithmetic, at most reordered
    ROUNDING = "rounding"  # precision
    SEMANTICS = "semantics"  # what is computed: batch size, data order


class Moment(str, enum.Enum):
    """When `apply` is called, and with what as `target`."""

    START = "start"  # torch has just been imported; target: the torch module
    LOADER = "loader"  # a DataLoader is about to be iterated for the first time; target: it
    MODEL = "model"  # a root model is about to be called in training for the first time; target: it
    OPTIMIZER = "optimizer"  # an optimizer is about to take its first step; target: it


class Switch(str, enum.Enum):
    """Where a running program can be switched from one state of the boost to the other.

    A boost with variables of its own (`environment`) waits for the next start, whatever this says.
    """

    STEP = "step"  # between two steps: `apply` and `undo` leave the program's state as it was
    ITERATOR = "iterator"  # where a loader's iterator can be handed over
    START = "start"  # only when a process starts


class Declined(Exception):  # noqa: N818 - a decision with its reason, not an error
    """The boost cannot be applied to this target; the message is the reason told to the user."""


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
    """Boosts that leave nothing for this one to gain: beside one of these it is not tried."""
    retry_after: tuple[str, ...] = ()
    """If dropped, worth a second try once one of these was kept."""
    redraws: bool = False
    """The program draws other random numbers under it (augmentation, dropout)."""
    evaluates: bool = False
    """It makes evaluation faster, not the steps."""
    compiles: bool = False
    """Its first steps are slow because something is compiled or captured."""
    rounds_by: float = 0.0
    """Largest error, as a share, of rounding the factors of products under it; 0: not rounded."""


def _engaged_by_default() -> tuple[bool, str] | None:
    return (True, "")


def _at_once() -> int:
    return 0


@dataclass(frozen=True)
class Applied:
    """What `apply` returns: how to take it back, and whether it really took hold."""

    undo: Undo
    engaged: Callable[[], tuple[bool, str] | None] = _engaged_by_default
    """Asked when the trial or the program ends: (took hold, detail); None: cannot be told."""
    steps_to_ready: Callable[[], int] = _at_once
    """Steps, as far as can be told, that must pass under it before it can show what it gains."""


class BoostModule(Protocol):
    """The shape of a boost's file."""

    BOOST: Boost
    __doc__: str | None

    @staticmethod
    def applies(facts: JobFacts, params: Params) -> str | None: ...
    @staticmethod
    def promise(facts: JobFacts, params: Params) -> float: ...
    @staticmethod
    def apply(job: Job, target: Any, params: Params) -> Applied: ...
    @staticmethod
    def by_hand(facts: JobFacts, params: Params) -> str: ...


def names() -> list[str]:
    """The ids of all boosts, sorted: the folder is the table."""
    return sorted(item.name.replace("_", "-") for item in pkgutil.iter_modules(__path__))


def load(boost_id: str) -> BoostModule:
    """The boost's module. Raises KeyError for an id that has no file."""
    name = boost_id.replace("-", "_")
    if not boost_id.replace("-", "").isalnum():
        raise KeyError(boost_id)
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise KeyError(boost_id) from None
    return cast(BoostModule, module)


def speedup(facts: JobFacts, **factors: float) -> float | None:
    """Likely speed-up where these kinds of operations become so many times as fast.

    Kinds are those of `JobFacts.shares`; None: where the step's time goes was not measured.
    """
    if not facts.shares:
        return None
    left = sum(facts.shares.get(kind, 0.0) * (1 - 1 / by) for kind, by in factors.items())
    return 1.0 / max(1.0 - left, 0.05)


def default_params(boost: Boost) -> Params:
    """The first value of each parameter."""
    return {name: values[0] for name, values in boost.params.items()}
