"""The part of the contract (see `wire`) that a live tuning uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Params = dict[str, Any]
LiveVerdict = Literal[
    "kept", "slower", "same", "different", "failed", "declined", "untried", "dropped"
]
"""same: no difference that matters; different: refused by the guard; declined: does not apply, or
did not take hold; untried: no time, or not worth it; dropped: was kept, then taken out again."""
WhyUntried = Literal["needs_start", "program_ended", "program_failed", "no_time", "not_worth_it"]
"""needs_start: it can be switched only when the program starts. program_failed: it was on with
others when the program failed."""


SHORT_S = 10.0
"""A run that trains for less than this is too short for windows: whole runs are compared."""
ENOUGH_TO_CONFIRM = 0.8
"""Share of the confirmation's estimated time that must be left to begin it."""
CONFIRM_SHARE = 0.5
"""The share of the user's time that a confirmation may take."""


@dataclass(frozen=True)
class BoostOrder:
    """One boost to apply, with its parameters."""

    id: str
    params: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """Pairs so far, from which the next process of a tuning continues."""

    boosts: str
    """The boosts being compared, with parameters."""
    kept: tuple[str, ...]
    """The boosts kept at that time."""
    ratios: tuple[float, ...]
    """Logarithms of the seconds of a block without these over those of one with them."""
    spent_s: float = 0.0
    """Seconds that the pairs took."""


@dataclass(frozen=True)
class LiveOrders:
    """How to tune a running program: boosts are switched on and off between its steps."""

    allowed: tuple[str, ...] = ()
    """Boosts that may be tried; those of `Orders.boosts` are on from the start."""
    settled: tuple[str, ...] = ()
    """Boosts decided in an earlier process of the same tuning: not tried again."""
    steps: int | None = None
    """Steps of the whole run, if the user knows them."""
    budget_s: float | None = None
    """The most seconds for the tuning, from the first step on, or None for as much as the run can
    repay."""
    ends_at: float | None = None
    """When everything must be over, including the confirmation, in seconds since the epoch ..."""
    started_at: float | None = None
    """... and when this process was started, or None if nothing is confirmed afterwards."""
    whole_s: float = 0.0
    """Seconds that the user allowed for everything."""
    written_s: float | None = None
    """Seconds of a unit as written, as an earlier process of the same tuning measured it, ..."""
    gain: float = 1.0
    """... the speed with `Orders.boosts` over that, ..."""
    pairs: int = 0
    """... the pairs on which this rests, ..."""
    measured: tuple[str, ...] = ()
    """... and those of them that were compared alone."""
    alone: bool = False
    """Try each boost alone: an earlier process failed with several on."""
    compared: tuple[Compared, ...] = ()
    stop: bool = False
    """End the program when everything is decided, as it was started only for the answer."""
    seed: int = 0
    """Seed of the random order of the blocks."""


def confirmation_s(start_s: float, step_s: float, run_steps: int | None) -> float:
    """About how many seconds two fresh processes need to confirm the result.

    start_s: from a process's start to its first step. run_steps: steps of the whole run; if it is
    short, whole runs are compared.
    """
    if run_steps is not None and run_steps * step_s < SHORT_S:
        return 2 * (start_s + run_steps * step_s) + 1.0
    return 1.4 * start_s + 15 * step_s + 3.0


def reserved_s(budget_s: float, start_s: float, step_s: float, run_steps: int | None) -> float:
    """The time that the search reserves for the confirmation, or nothing if that would take too
    much.

    In that case the result is reported as measured between steps.
    """
    needed_s = confirmation_s(start_s, step_s, run_steps)
    return needed_s if needed_s <= CONFIRM_SHARE * budget_s else 0.0


@dataclass(frozen=True)
class Decided:
    """The outcome of one boost in live tuning."""

    id: str
    verdict: LiveVerdict
    reason: str = ""
    params: Params = field(default_factory=dict)
    gain: float | None = None
    """Speed with the boost over speed without it, with everything kept before it on."""
    low: float | None = None
    high: float | None = None
    """Ends of the confidence interval."""
    pairs: int = 0
    step: int = 0
    """Steps that the program had taken by then."""
    elapsed_s: float = 0.0
    """Seconds since its first step by then."""
    cost_s: float = 0.0
    """Seconds from the first look at this boost to its verdict."""
    compile_s: float = 0.0
    """The part of these seconds in the first calls under the boost."""
    step_ms: float | None = None
    """Step time with the boost on."""
    gradient_error: float | None = None
    batch_noise: float | None = None
    own_noise: float | None = None
    again: bool = False
    """Whether this is a second look at this boost."""
    why_untried: WhyUntried | None = None
    """Why another process may still try it, or None if it was decided here."""
    together: tuple[str, ...] = ()
    """The boosts that share this gain, if several were measured together."""
    kind: str = "decided"


@dataclass(frozen=True)
class BlockRun:
    """Neighbouring steps under one set of boosts: a point of the run's plot."""

    step: int
    """The first step of the block, counted from 1."""
    steps: int
    ms: float
    """Mean step time."""
    on: tuple[str, ...] = ()
    kind: str = "block"


@dataclass(frozen=True)
class LiveSummary:
    """State of a live tuning, written when everything is decided and when the program ends."""

    kept: tuple[BoostOrder, ...]
    settled: bool
    """Whether every boost that may be tried has its verdict."""
    steps: int
    written_ms: float | None = None
    """Step time as written, as last measured."""
    now_ms: float | None = None
    """Step time with the kept boosts."""
    noise: float | None = None
    """Standard deviation of the log-ratio of two neighbouring blocks as written."""
    pairs: int = 0
    """The fewest pairs of blocks that any kept boost rests on."""
    saved_s: float = 0.0
    """Seconds saved against the program as written, over the steps of this run; negative if it cost
    time."""
    lost_s: float = 0.0
    """Seconds spent on guards, compilation and slower blocks."""
    lost_late_s: float = 0.0
    """The part of these seconds after the first minute."""
    run_steps: int | None = None
    """The assumed number of steps of the whole run, ..."""
    run_basis: str = ""
    """... and what in the program shows it."""
    samples_per_s: float | None = None
    micro_steps: bool = False
    """Whether micro-steps are measured, as a step of this program consists of many."""
    guard: str = ""
    """The guard's finding on all kept boosts, against the program as written."""
    guard_passed: bool | None = None
    gradient_error: float | None = None
    batch_noise: float | None = None
    own_noise: float | None = None
    """Distance of the gradients of two runs as written that draw different random numbers."""
    compared: tuple[Compared, ...] = ()
    kind: str = "live"
