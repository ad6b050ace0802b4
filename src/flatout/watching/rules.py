"""The input and the answer of a rule, and the table of all rules."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from flatout.nouns.finding import Cure, Severity
from flatout.nouns.job_sample import PulseStep
from flatout.nouns.machine_sample import MachineSample

FOLDER = Path(__file__).parent / "alerts"
DUE = 0.75
"""Share of the steps between two pauses after which the next may come: they may be timed."""


@dataclass(frozen=True)
class Rule:
    """A rule's identity; its id is its file's name."""

    code: str
    severity: Severity
    since: str
    every_s: float = 0.0
    """Interval between questions, with the answer kept meanwhile; 0.0 asks at each look."""


@dataclass(frozen=True)
class Breach:
    """A rule's answer: it holds now for `subject`."""

    title: str
    evidence: str
    cure: Cure
    subject: str = ""
    fires: bool = True
    """False if only above the lower threshold: a firing alert goes on, but none begins."""
    hold_s: float = 0.0
    """How long it must hold before it fires."""
    boost: str | None = None
    where: str | None = None
    severity: Severity | None = None
    """The severity, or None for the rule's own."""
    since_s: float | None = None
    """Unix time at which it began, or None if that is when it was first seen."""


@dataclass(frozen=True)
class TreeSample:
    """A rank's process with everything that it started, at one moment."""

    time_s: float
    cpu_cores: float | None = None
    memory_bytes: int | None = None


@dataclass
class Pause:
    """Gaps of one kind: with an evaluation, a checkpoint or the begin of an epoch."""

    longest_s: float = 0.0
    last_step: int = 0
    """The step at whose end the last one was over."""
    least_steps: int | None = None
    """The fewest steps between two of them, or None if not known yet."""

    def is_due(self, step: int) -> bool:
        """Whether one may follow this step, as far as is known."""
        return self.least_steps is None or step + 1 - self.last_step >= DUE * self.least_steps


@dataclass
class RankHistory:
    """What is known of one rank, oldest first."""

    rank: int
    pid: int
    device: str | None = None
    world_size: int = 1
    steps: Sequence[PulseStep] = ()
    """At least the steps of the last 15 minutes, but no more than 20,000."""
    trees: Sequence[TreeSample] = ()
    """One a second for the last 15 minutes, one in 10 s before, for up to two hours."""
    gpus: tuple[int, ...] = ()
    """Indices of its GPUs in `MachineSample.gpus`."""
    longest_gap_s: float = 0.0
    """The longest between two steps of the run, without compiling, evaluating and saving."""
    pauses: dict[int, Pause] = field(default_factory=dict)
    """By the flag of `flatout_agent.wire.pulse` that marks the kind."""
    p99_gap_s: float = 0.0
    first_step_scale: float | None = None
    """Loss scale of the gradient scaler at its first step."""
    epochs: int = 0
    """Epochs begun so far."""
    early_step_s: float | None = None
    """Median duration of steps 50 to 250 with the most frequent shapes."""
    early_shapes: int | None = None
    new_shapes_s: Sequence[float] = ()
    """Unix times at which inputs had shapes that were new."""
    early_wait_s: float | None = None
    early_clock_mhz: float | None = None
    """Median clock of its GPU in those steps."""
    waits_for_input: bool = False
    """Whether it waits for its user to type a line: a debugger, `input()`."""
    ended: bool = False
    """Whether its process is gone; the job may go on."""

    @property
    def usual_gap_s(self) -> float:
        """The longest usual gap after its last step; pauses count if one may be due."""
        step = self.steps[-1].step if self.steps else 0
        due = [pause.longest_s for pause in self.pauses.values() if pause.is_due(step)]
        return max(self.longest_gap_s, *due, 0.0)


@dataclass
class JobHistory:
    """What is known of one job."""

    id: str
    pid: int
    began_s: float
    ranks: Sequence[RankHistory] = ()
    pids: frozenset[int] = frozenset()
    """Ids of all its current processes."""
    program: str = "train.py"
    """As the user typed it, for commands."""
    run_folder: str | None = None
    folder: str | None = None
    boosts: tuple[str, ...] = ()
    """Boosts of its plan."""
    wait_boost: str | None = None
    """The boost that would speed its loader up, if one applies and is not in the plan."""
    largest_save_bytes: int | None = None
    """Size of the largest checkpoint that it has written."""
    ended_s: float | None = None
    exit_code: int | None = None
    """The exit code as a shell shows it."""
    explained: tuple[str, str, tuple[str, ...]] | None = None
    """What `explain` says about a crash: title, cause, cures."""
    stacks: str | None = None
    """File with the stacks of all its ranks, written during a hang."""


@dataclass
class View:
    """Everything that a rule may look at."""

    now_s: float
    hostname: str
    machine: Sequence[MachineSample] = field(default_factory=tuple)
    """One a second for 15 minutes, one in 10 s before that, for up to two hours; oldest first."""
    job: JobHistory | None = None
    """The job in question, or None for the machine alone."""
    jobs: Sequence[JobHistory] = ()
    """All watched jobs on this machine."""

    @property
    def latest(self) -> MachineSample | None:
        """The machine's latest sample."""
        return self.machine[-1] if self.machine else None

    def last(self, seconds: float) -> list[MachineSample]:
        """The machine's samples of the last `seconds`."""
        begin = self.now_s - seconds
        newest = itertools.takewhile(lambda sample: sample.time_s > begin, reversed(self.machine))
        return [*newest][::-1]


class RuleModule(Protocol):
    """What each rule's file defines."""

    __name__: str
    __doc__: str | None
    RULE: Rule

    def check(self, view: View) -> Iterator[Breach]: ...


def files() -> list[Path]:
    """The files of all rules, by code."""
    return sorted(path for path in FOLDER.glob("*_*.py") if not path.stem.startswith("_"))


def every() -> list[RuleModule]:
    """The modules of all rules, by code."""
    names = (path.stem for path in files())
    return [
        cast("RuleModule", importlib.import_module(f"flatout.watching.alerts.{name}"))
        for name in names
    ]


def id_of(module: RuleModule) -> str:
    """The id of a rule: job-hangs for watching.alerts.hang001_job_hangs."""
    return module.__name__.rpartition(".")[2].partition("_")[2].replace("_", "-")
