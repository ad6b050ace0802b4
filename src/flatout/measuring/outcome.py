"""From the records of one process to its figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from flatout.nouns.trial import Measured
from flatout_agent import wire

LEAST_STEPS = 3
"""Fewer measured steps than this are no measurement."""


@dataclass
class Rank:
    """What one training process has recorded so far."""

    rank: int = 0
    torch: str | None = None
    facts: wire.JobFacts | None = None
    steps: list[wire.StepTaken] = field(default_factory=list)
    losses: tuple[float | None, ...] = ()
    notes: dict[str, wire.BoostNote] = field(default_factory=dict)
    redirected: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    gate: wire.AtGate | None = None
    ended: wire.Ended | None = None

    def add(self, record: wire.Record) -> None:
        """Account for one record."""
        match record:
            case wire.Started():
                self.rank = record.rank
            case wire.TorchSeen():
                self.torch = record.version
            case wire.JobSeen():
                self.facts = record.facts
            case wire.StepTaken():
                self.steps.append(record)
            case wire.LossesSeen():
                self.losses = record.losses
            case wire.BoostNote():
                self.notes[record.id] = record
            case wire.Redirected():
                self.redirected.append(record.path)
            case wire.Fault():
                self.faults.append(f"{record.where}: {record.message}")
            case wire.AtGate():
                self.gate = record
            case wire.Ended():
                self.ended = record


@dataclass(frozen=True)
class Outcome:
    """One trial's process, over."""

    rank: Rank | None
    """The leading training process; None: no step was taken anywhere."""
    measured: Measured | None
    error: str | None
    """Why there is no measurement, in one line."""
    torch_seen: bool
    agent_seen: bool
    returncode: int | None
    log: str
    wall_s: float
    redirected: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def notes(self) -> dict[str, wire.BoostNote]:
        """What became of each boost in the leading process."""
        return self.rank.notes if self.rank is not None else {}


def leading(ranks: Iterable[Rank]) -> Rank | None:
    """The training process whose figures count: the lowest rank that took steps."""
    training = [rank for rank in ranks if rank.steps]
    return min(training, key=lambda item: (item.rank, -len(item.steps)), default=None)


def measured(rank: Rank, peak_bytes: int | None, world: int = 1) -> Measured | None:
    """The window's figures; None where too few steps were taken."""
    window = [step for step in rank.steps if step.phase == "window"]
    if len(window) < LEAST_STEPS:
        return None
    times = [step.wall_s - step.eval_s for step in window]
    total = sum(times)
    evaluations = [step.eval_s for step in window if step.eval_s]
    samples = sum(step.samples for step in window) * world
    ended = rank.ended
    return Measured(
        step_ms=1000 * total / len(window),
        samples_per_s=samples / total if samples else None,
        steps_ms=tuple(1000 * time for time in times),
        losses=rank.losses,
        wait_share=min(1.0, sum(step.wait_s for step in window) / total),
        eval_ms=1000 * statistics.mean(evaluations) if evaluations else None,
        compile_s=_start_up_s(rank.steps, total / len(window)),
        peak_bytes=ended.peak_bytes if ended and ended.peak_bytes is not None else peak_bytes,
        recompiles=ended.recompiles if ended else 0,
        graph_breaks=ended.graph_breaks if ended else 0,
    )


def _start_up_s(steps: list[wire.StepTaken], steady_s: float) -> float:
    """Time of the first steps beyond what as many steady steps take: compilation, mostly."""
    early = [step.wall_s - step.eval_s for step in steps if step.phase != "window"]
    return sum(time - steady_s for time in early if time > 2 * steady_s)
