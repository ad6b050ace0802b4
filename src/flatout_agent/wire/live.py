"""The part of the contract (see `wire`) that a live tuning uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Params = dict[str, Any]
LiveVerdict = Literal[
    "kept", "slower", "same", "different", "failed", "declined", "untried", "dropped"
]
"""same: no difference that matters; different: the guard; declined: does not apply, or did not take
hold; untried: no time, or would not pay; dropped: was kept, and taken out again."""
WhyUntried = Literal["needs_start", "program_ended", "no_time", "not_worth_it"]
"""needs_start: it can only be switched when the program starts."""


SHORT_S = 10.0
"""A run that trains for less than this has no room for windows: whole runs are compared."""
CONFIRM_SHARE = 0.4
"""Share of the time that the user gave which a confirmation may take."""


@dataclass(frozen=True)
class BoostOrder:
    """One boost to apply, with its parameters."""

    id: str
    params: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """Pairs so far: the next process of a tuning goes on from them and does not begin anew."""

    boosts: str
    """What is compared, with parameters."""
    kept: tuple[str, ...]
    """What was kept then."""
    ratios: tuple[float, ...]
    """Logarithms: seconds of a block without these over seconds of one with them."""
    spent_s: float = 0.0
    """Seconds that they took."""


@dataclass(frozen=True)
class LiveOrders:
    """How to tune a running program: boosts are switched on and off between its steps."""

    allowed: tuple[str, ...] = ()
    """Boosts that may be tried; those of `Orders.boosts` are on from the start."""
    settled: tuple[str, ...] = ()
    """Boosts decided in an earlier process of the same tuning: not tried again."""
    steps: int | None = None
    """Steps that the whole run takes, where the user knows."""
    budget_s: float | None = None
    """Most seconds for all of the tuning, from the first step on; None: as much as the run can
    repay."""
    ends_at: float | None = None
    """When all must be over, the confirmation included, in seconds since the epoch ..."""
    started_at: float | None = None
    """... and when this process was started; None: nothing is confirmed afterwards."""
    whole_s: float = 0.0
    """The time that the user gave for all of it."""
    written_s: float | None = None
    """Seconds of a unit as written, as an earlier process of the same tuning measured it, ..."""
    gain: float = 1.0
    """... the speed with `Orders.boosts` over that, ..."""
    pairs: int = 0
    """... the pairs that this rests on, ..."""
    measured: tuple[str, ...] = ()
    """... and those of them that were compared alone."""
    compared: tuple[Compared, ...] = ()
    stop: bool = False
    """End the program when everything is decided: it was started for the answer alone."""
    seed: int = 0
    """Seed of the random order of the blocks."""


def confirmation_s(start_s: float, step_s: float, run_steps: int | None) -> float:
    """Seconds that two fresh processes need to confirm what was found, about.

    start_s: from a process's start to its first step. run_steps: of the whole run; where it is
    short, whole runs are compared.
    """
    if run_steps is not None and run_steps * step_s < SHORT_S:
        return 2 * (start_s + run_steps * step_s) + 1.0
    return 1.4 * start_s + 15 * step_s + 3.0


def reserved_s(budget_s: float, start_s: float, step_s: float, run_steps: int | None) -> float:
    """What the search leaves of the time for the confirmation: nothing where that takes too much.

    Then what was found is told as measured between steps.
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
    """Speed with the boost over speed without it, everything kept before it being on."""
    low: float | None = None
    high: float | None = None
    """Ends of the confidence sequence's interval."""
    pairs: int = 0
    step: int = 0
    """Steps that the program had taken by then."""
    elapsed_s: float = 0.0
    """Seconds since its first step by then."""
    cost_s: float = 0.0
    """From the first look at this boost to its verdict."""
    compile_s: float = 0.0
    """Of that, in the first calls under the boost."""
    step_ms: float | None = None
    """Step time with the boost on."""
    gradient_error: float | None = None
    batch_noise: float | None = None
    own_noise: float | None = None
    again: bool = False
    """A second look at this boost."""
    why_untried: WhyUntried | None = None
    """Why another process may still try it; None: it was decided here."""
    together: tuple[str, ...] = ()
    """The boosts whose gain this is, where several were measured together."""
    kind: str = "decided"


@dataclass(frozen=True)
class BlockRun:
    """Neighbouring steps under one set of boosts: a point of the picture of the run."""

    step: int
    """The first step of the block, counted from 1."""
    steps: int
    ms: float
    """Mean step time."""
    on: tuple[str, ...] = ()
    kind: str = "block"


@dataclass(frozen=True)
class LiveSummary:
    """State of a live tuning: written when all is decided, and when the program ends."""

    kept: tuple[BoostOrder, ...]
    settled: bool
    """Every boost that may be tried has its verdict."""
    steps: int
    written_ms: float | None = None
    """Step time as written, as last measured."""
    now_ms: float | None = None
    """Step time with what is kept."""
    noise: float | None = None
    """Standard deviation of the log-ratio of two neighbouring blocks as written."""
    pairs: int = 0
    """The fewest pairs of blocks that anything that is kept rests on."""
    saved_s: float = 0.0
    """Against the program as written, over the steps of this run; negative: it cost time."""
    lost_s: float = 0.0
    """Spent on guards, compilation and blocks that were slower."""
    lost_late_s: float = 0.0
    """Of that, beyond the first minute."""
    run_steps: int | None = None
    """Steps that the whole run is taken to have, ..."""
    run_basis: str = ""
    """... and what in the program shows it."""
    samples_per_s: float | None = None
    micro_steps: bool = False
    """Measured by micro-step: a step of this program is made of many."""
    guard: str = ""
    """The guard's finding on all that is kept, against the program as written."""
    guard_passed: bool | None = None
    gradient_error: float | None = None
    batch_noise: float | None = None
    compared: tuple[Compared, ...] = ()
    kind: str = "live"
