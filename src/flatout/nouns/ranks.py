"""Ranks: processes that train one job together, how they ended, and whether they pay off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RANKS_TRIAL = "ranks-trial.json"
"""The file in a run's folder that holds the preceding Scaling."""
RankEnding = Literal["error", "early", "hang", "gone"]
"""early: ended normally while others still trained; gone: its machine or flatout there is lost."""
LossesAgree = Literal["exact", "rounding", "noise", "different"]
"""rounding: as far apart as those of one process with differently rounded gradients; noise: within
what other random numbers do to the losses."""


@dataclass(frozen=True)
class ModelCut:
    """Whether each rank computes its own rows of one root model's batch."""

    model: str
    """Class name."""
    cut: bool
    reason: str = ""
    """Why it is not divided and each rank computes all of it."""
    rows: int | None = None
    error: float | None = None
    """Largest relative difference between the joined rows and the whole batch."""
    random: bool = False
    """Whether its calls draw random numbers, of which each rank draws its own."""


@dataclass(frozen=True)
class RankFailure:
    """The rank that ended the run, and what happened to the others."""

    rank: int
    size: int
    ending: RankEnding
    returncode: int
    """The run's exit code; -N for signal N."""
    error: str
    """One line: its exception, signal or exit code, or how long it has made no progress."""
    step: int | None = None
    """Its last step."""
    place: str | None = None
    """train.py:88."""
    ended: int = 0
    """Number of other ranks that were ended."""
    waiting: int = 0
    """How many of those waited in the exchange with the other ranks."""
    lost: int = 0
    """Number of other ranks that lost it in the exchange and ended by themselves."""
    ended_after_s: float = 0.0
    log: str | None = None
    """The rank's log, or None for rank 0, which wrote to the terminal."""
    stacks: str | None = None
    """File with the stacks of all ranks that answered."""
    node: str = ""
    """Its machine; empty if there is only one."""


@dataclass(frozen=True)
class RanksEnd:
    """How the ranks of a run trained together. None and empty mean unknown."""

    size: int
    backend: str | None = None
    models: tuple[ModelCut, ...] = ()
    exchanged_bytes: int | None = None
    """Bytes of gradients per step."""
    exchange_s: float | None = None
    """Seconds per step for exchanging gradients, including waits for other ranks."""
    region_s: float | None = None
    """Seconds per step for joining and splitting rows, including waits."""
    gradient_error: float | None = None
    scaling: Scaling | None = None
    """The trial before the run, or None if there was none."""
    native: str = ""
    """The framework that divided the work itself, or `ddp`; empty if rows were cut."""
    failure: RankFailure | None = None


@dataclass(frozen=True)
class ScalingRow:
    """One number of ranks in the trial, against one process."""

    size: int
    step_ms: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    """95 % interval of the speed-up, from the step times."""
    losses: LossesAgree | None = None
    """Whether the losses agree, or None if the program shows no losses to compare."""
    losses_reason: str = ""
    models: tuple[ModelCut, ...] = ()
    exchange_s: float | None = None
    region_s: float | None = None
    wait_s: float | None = None
    """Seconds per step waiting for data."""
    error: str | None = None
    """Why there is no measurement."""
    native: str = ""
    """The framework that divided the work itself, or `ddp`; empty if rows were cut."""

    @property
    def efficiency(self) -> float | None:
        """Speed-up per rank."""
        return self.speedup / self.size if self.speedup is not None else None


@dataclass(frozen=True)
class Scaling:
    """A trial of several numbers of ranks, and the number that was chosen."""

    asked: int
    count: int | None
    """The chosen number of ranks, or None if none pays off or trains correctly."""
    written_ms: float
    """Step time of one process."""
    rows: tuple[ScalingRow, ...]
    refusal: str = ""
    """Why no number was chosen, with figures."""

    @property
    def chosen(self) -> ScalingRow | None:
        """The row of the chosen number."""
        return next((row for row in self.rows if row.size == self.count), None)
