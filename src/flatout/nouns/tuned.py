"""Tuned: the result of `flatout tune`; the input of every report of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.nouns.identity import Identity
from flatout.nouns.plan import Plan
from flatout.nouns.trial import Guard, Measurement, StepBlock, Trial


@dataclass(frozen=True)
class Confirmation:
    """The untouched program and the plan run in turn, A B A B; ratios are untouched / plan."""

    pairs: int
    ratios: tuple[float, ...]
    speedup: float
    """Median of the ratios."""
    interval: tuple[float, float] | None
    """95 %, bootstrap over the pairs; None: one pair tells nothing of what pairs differ by."""
    untouched_ms: tuple[float, ...]
    plan_ms: tuple[float, ...]
    guard: Guard
    untouched_losses: tuple[float | None, ...] = ()
    """The loss of each step of the untouched program in these runs, from the first on."""
    plan_losses: tuple[float | None, ...] = ()

    @property
    def faster(self) -> bool:
        """The plan is faster over the whole interval."""
        return self.interval is not None and self.interval[0] > 1.0


@dataclass(frozen=True)
class Tuned:
    """The whole of one `flatout tune`."""

    command: tuple[str, ...]
    machine: Identity
    baseline: Measurement
    """The untouched program."""
    best: Measurement | None
    """Under the plan, as measured in the confirmation, or None if nothing was faster."""
    trials: tuple[Trial, ...]
    confirmation: Confirmation | None
    plan: Plan | None
    noise: float
    """Relative difference between two runs of the untouched program."""
    wall_s: float
    deterministic: bool | None = None
    """Two runs of the untouched program gave the same losses to the last bit."""
    redirected: tuple[str, ...] = ()
    """What the program tried to save in the trials."""
    leaked: tuple[str, ...] = ()
    """Files that changed in the working folder in spite of the redirection."""
    faults: tuple[str, ...] = ()
    """Errors inside the agent."""
    interrupted: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)
    blocks: tuple[StepBlock, ...] = ()
    """Step times of the run in which boosts were switched, in its own order."""
    live_guard: Guard | None = None
    """The guard's verdict on all kept boosts together, within that run."""
    live: bool = False
    """Tuned within a run that the user wanted anyway; its own figures are the result."""
    saved_s: float | None = None
    """Time that such a run took less than it would have as written."""
    lost_s: float | None = None
    """What the tuning cost such a run, faster blocks set off against it ..."""
    lost_late_s: float | None = None
    """... and of that, beyond its first minute."""
    tried: bool = True
    """At least one boost was tried fairly, or none applies."""
    unmeasured: tuple[str, ...] = ()
    """Boosts that were on when such a run ended, before the gain of all of them was measured."""
    plan_path: str | None = None
    report_path: str | None = None
    run_folder: str | None = None
    micro_steps: bool = False
    """Step times are those of micro-steps: an optimizer step of this program takes several."""
