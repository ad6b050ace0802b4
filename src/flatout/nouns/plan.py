"""Plan: the boosts that won, their measured gains, and for which machine and script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flatout.nouns.identity import Identity
from flatout_agent.wire import JobFacts


@dataclass(frozen=True)
class PlannedBoost:
    """One boost of a plan. gain: measured speed-up when it was added (1.5 = 50 % faster)."""

    id: str
    params: dict[str, Any] = field(default_factory=dict)
    gain: float | None = None
    risk: str | None = None


@dataclass(frozen=True)
class PlannedRanks:
    """What a trial of several ranks found. A figure is None if the file does not give it."""

    asked: int | None = None
    """The most ranks that were tried."""
    count: int | None = None
    """The fastest number of ranks."""
    speedup: float | None = None
    """Speed-up over one process, by wall time per step."""
    interval: tuple[float, float] | None = None
    efficiency: float | None = None
    """Speed-up per rank."""
    losses: str | None = None
    """exact or noise: how the losses compare with those of one process."""
    machine: str | None = None
    """Where it was measured."""
    script_sha256: str | None = None
    native: str | None = None
    """The framework that divides the work itself, or `ddp`."""
    scale_batch: bool | None = None
    """Whether each rank had a whole batch."""


@dataclass(frozen=True)
class Plan:
    """What `flatout.toml` holds."""

    boosts: tuple[PlannedBoost, ...]
    command: tuple[str, ...] = ()
    """The user's command, for the reader."""
    script_sha256: str | None = None
    machine: Identity | None = None
    speedup: float | None = None
    speedup_interval: tuple[float, float] | None = None
    pairs: int | None = None
    created: str | None = None
    """ISO 8601, UTC."""
    pays_after_steps: int | None = None
    """Steps until the time spent compiling is won back."""
    compile_s: float | None = None
    ranks: PlannedRanks | None = None
    job: JobFacts | None = None
    """What was seen of the program without boosts, or None if the plan was written by hand."""
