"""Ranks: processes that train one job together; how they fared, and whether they pay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RANKS_TRIAL = "ranks-trial.json"
"""In the folder of a run: the Scaling before it."""
RankEnding = Literal["error", "early", "hang", "gone"]
"""early: it ended in order while the others still trained; gone: its machine, or flatout there."""
LossesAgree = Literal["exact", "rounding", "noise", "different"]
"""rounding: as far off as those of one process whose gradients are rounded otherwise; noise: within
what other random numbers do to the losses."""


@dataclass(frozen=True)
class ModelCut:
    """Whether each rank computes its own rows of one root model's batch."""

    model: str
    """Class name."""
    cut: bool
    reason: str = ""
    """Why it is not cut: each rank computes all of it."""
    rows: int | None = None
    error: float | None = None
    """Largest relative difference between the joined rows and the whole batch."""
    random: bool = False
    """Its calls draw random numbers: each rank draws its own."""


@dataclass(frozen=True)
class RankFailure:
    """The rank that ended the run, and what became of the others."""

    rank: int
    size: int
    ending: RankEnding
    returncode: int
    """What the run ends with; -N: signal N."""
    error: str
    """One line: its exception, its signal or exit code, or how long it stands still."""
    step: int | None = None
    """Its last."""
    place: str | None = None
    """train.py:88."""
    ended: int = 0
    """Others that were ended."""
    waiting: int = 0
    """Those among them that waited in the exchange with the other ranks."""
    lost: int = 0
    """Others that lost it in the exchange, and ended by themselves."""
    ended_after_s: float = 0.0
    log: str | None = None
    """The rank's log, or None for rank 0, which wrote to the terminal."""
    stacks: str | None = None
    """File with the stacks of all ranks that could be asked."""
    node: str = ""
    """Its machine; empty: there is only one."""


@dataclass(frozen=True)
class RanksEnd:
    """How the ranks of a run trained together; None and empty: not known."""

    size: int
    backend: str | None = None
    models: tuple[ModelCut, ...] = ()
    exchanged_bytes: int | None = None
    """Gradients per step."""
    exchange_s: float | None = None
    """Per step: exchanging gradients, waits for other ranks included."""
    region_s: float | None = None
    """Per step: joining and splitting rows, waits included."""
    gradient_error: float | None = None
    scaling: Scaling | None = None
    """The trial before the run, or None if there was none."""
    native: str = ""
    """The framework that divided the work itself, or `ddp`; empty: rows were cut."""
    failure: RankFailure | None = None


@dataclass(frozen=True)
class ScalingRow:
    """One number of ranks in the trial, against one process."""

    size: int
    step_ms: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    """95 %, from the times of the steps."""
    losses: LossesAgree | None = None
    """Whether the losses agree, or None if the program shows no losses to compare."""
    losses_reason: str = ""
    models: tuple[ModelCut, ...] = ()
    exchange_s: float | None = None
    region_s: float | None = None
    wait_s: float | None = None
    """Per step: waiting for data."""
    error: str | None = None
    """Why there is no measurement."""
    native: str = ""
    """The framework that divided the work itself, or `ddp`; empty: rows were cut."""

    @property
    def efficiency(self) -> float | None:
        """Speed-up per rank."""
        return self.speedup / self.size if self.speedup is not None else None


@dataclass(frozen=True)
class Scaling:
    """A trial of several numbers of ranks, and the number that was chosen."""

    asked: int
    count: int | None
    """None: no number pays, or none is right."""
    written_ms: float
    """A step of one process."""
    rows: tuple[ScalingRow, ...]
    refusal: str = ""
    """Why there is no count, with the numbers."""

    @property
    def chosen(self) -> ScalingRow | None:
        """The row of the number that was chosen."""
        return next((row for row in self.rows if row.size == self.count), None)
