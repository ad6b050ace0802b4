"""Trial: one short measured run of the job under a set of boosts, and the Guard's verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Literal

WhyUntried = Literal["needs_start", "program_ended", "program_failed", "no_time", "not_worth_it"]
"""Why a boost is untried; needs_start: it can only be switched when the program starts."""


class Verdict(enum.StrEnum):
    """The outcome of a trial's boosts."""

    KEPT = "kept"
    SLOWER = "slower"  # not faster beyond the noise
    DIFFERENT = "different"  # the Guard: it does not learn the same
    FAILED = "failed"  # crashed, hung, out of memory
    SKIPPED = "skipped"  # does not apply here, or there was no time; the reason says which


@dataclass(frozen=True)
class Guard:
    """Whether a trial still learns the same as the untouched program, with figures.

    Ratios have no unit. Sources: the gradients of single calls repeated at the same weights, and
    the losses of the confirmation, paired by step with the untouched program's.
    """

    passed: bool
    reason: str
    """One line for people, with figures."""
    gradient_error: float | None = None
    """Worst |g - g_untouched| / |g_untouched| of the calls that were compared."""
    batch_noise: float | None = None
    """Mean |g_i - g_j| / |g_i| between the untouched program's own batches."""
    own_noise: float | None = None
    """The same distance between two untouched runs with different random numbers."""
    loss_sigma: float | None = None
    """Mean difference of the losses in units of its standard error."""
    finite: bool = True
    gradient_compared: bool = True
    redrawn_sigma: float | None = None
    """Largest `loss_sigma` of untouched runs with other random numbers, or None if not needed."""


@dataclass(frozen=True)
class Measurement:
    """Figures of one process; `step_ms` is wall time per step over the window."""

    step_ms: float
    samples_per_s: float | None
    steps_ms: tuple[float, ...]
    """Time of each step in the window."""
    losses: tuple[float | None, ...]
    """Losses from the first step on."""
    wait_share: float | None = None
    compile_s: float = 0.0
    """Time of the first steps beyond that of as many steady steps."""
    peak_bytes: int | None = None
    recompiles: int = 0
    graph_breaks: int = 0


@dataclass(frozen=True)
class Trial:
    """One row of the table."""

    boosts: tuple[str, ...]
    """All boosts that were on."""
    tried: str | None
    """The boost in question, or None for the untouched program or the whole plan."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the boost in question."""
    verdict: Verdict = Verdict.SKIPPED
    reason: str = ""
    measured: Measurement | None = None
    gain: float | None = None
    """Speed relative to the same program without the boost in question."""
    guard: Guard | None = None
    engaged: dict[str, str] = field(default_factory=dict)
    """Boost -> what it reported about itself (captured, native, refused ...)."""
    log: str | None = None
    """Path of the process's own output."""
    wall_s: float = 0.0
    retried: bool = False
    interval: tuple[float, float] | None = None
    """Interval of the gain: a confidence sequence over pairs of neighbouring blocks."""
    pairs: int = 0
    why_untried: WhyUntried | None = None
    """Why it may still be tried elsewhere, or None if it was tried or does not apply."""

    @property
    def left(self) -> bool:
        """Whether it was not fully tried, so that a longer run or another process may try it."""
        return self.why_untried not in (None, "needs_start")


@dataclass(frozen=True)
class StepBlock:
    """Neighbouring steps of one run under one set of boosts."""

    step: int
    """The first step, counted from 1."""
    steps: int
    ms: float
    """Mean step time."""
    on: tuple[str, ...] = ()
