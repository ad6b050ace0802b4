"""Tuned: the result of `flatout tune`, and the input of all its reports."""

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
    """95 % bootstrap interval over the pairs, or None for a single pair, which shows no spread."""
    untouched_ms: tuple[float, ...]
    plan_ms: tuple[float, ...]
    guard: Guard
    disturbed: bool = False
    """Whether other programs took cores in the pairs, so that their ratios say little."""
    untouched_losses: tuple[float | None, ...] = ()
    """Loss of each step of the untouched program in these runs, from the first on."""
    plan_losses: tuple[float | None, ...] = ()

    @property
    def faster(self) -> bool:
        """Whether the plan is faster over the whole interval."""
        return not self.disturbed and self.interval is not None and self.interval[0] > 1.0


@dataclass(frozen=True)
class Tuned:
    """The whole of one `flatout tune`."""

    command: tuple[str, ...]
    machine: Identity
    baseline: Measurement
    """The untouched program."""
    best: Measurement | None
    """The program under the plan, as confirmed, or None if nothing was faster."""
    trials: tuple[Trial, ...]
    confirmation: Confirmation | None
    plan: Plan | None
    noise: float
    """Relative difference between two runs of the untouched program."""
    wall_s: float
    deterministic: bool | None = None
    """Whether two runs of the untouched program gave bitwise identical losses."""
    redirected: tuple[str, ...] = ()
    """What the program tried to save in the trials."""
    leaked: tuple[str, ...] = ()
    """Files in the working folder that changed despite the redirection."""
    faults: tuple[str, ...] = ()
    """Errors in the agent."""
    interrupted: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)
    blocks: tuple[StepBlock, ...] = ()
    """Step times of the run in which boosts were switched, in their order."""
    live_guard: Guard | None = None
    """The guard's verdict on all kept boosts together, within that run."""
    live: bool = False
    """Whether it was tuned within the user's own run, whose figures are the result."""
    saved_s: float | None = None
    """Time that such a run saved compared with the unchanged program."""
    lost_s: float | None = None
    """Net time that tuning cost such a run, less what faster blocks saved."""
    lost_late_s: float | None = None
    """The part of `lost_s` after the run's first minute."""
    tried: bool = True
    """Whether at least one boost was tried fairly, or none applies."""
    redrawn: tuple[str, ...] = ()
    """Boosts of the plan that draw other random numbers."""
    unmeasured: tuple[str, ...] = ()
    """Boosts that were on when such a run ended, before the gain of all was measured."""
    plan_path: str | None = None
    report_path: str | None = None
    run_folder: str | None = None
    micro_steps: bool = False
    """Whether step times are of micro-steps, several of which make one optimizer step."""
