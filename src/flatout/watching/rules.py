"""What a rule is given and what it answers; and the table of all rules."""

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
"""Share of the steps between two pauses after which the next may come: they may be by time."""


@dataclass(frozen=True)
class Rule:
    """A rule's identity; its id is its file's name."""

    code: str
    severity: Severity
    since: str
    every_s: float = 0.0
    """It is asked so often, and its answer stands meanwhile; 0.0: at each look."""


@dataclass(frozen=True)
class Breach:
    """A rule's answer: it holds now for `subject`."""

    title: str
    evidence: str
    cure: Cure
    subject: str = ""
    fires: bool = True
    """False: only above the lower threshold, at which a firing alert goes on but none begins."""
    hold_s: float = 0.0
    """It must have held for so long before it fires."""
    boost: str | None = None
    where: str | None = None
    severity: Severity | None = None
    """None: the rule's."""
    since_s: float | None = None
    """Unix time at which it began, where that is known; None: when it was seen first."""


@dataclass(frozen=True)
class TreeSample:
    """A rank's process with all that it started, at one moment."""

    time_s: float
    cpu_cores: float | None = None
    memory_bytes: int | None = None


@dataclass
class Pause:
    """The gaps of one kind: those with an evaluation, a checkpoint or an epoch's begin in them."""

    longest_s: float = 0.0
    last_step: int = 0
    """At whose end the last one was over."""
    least_steps: int | None = None
    """Between two of them; None: not known yet."""

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
    """At least the steps of the last 15 minutes, as far as 20,000 are enough for them."""
    trees: Sequence[TreeSample] = ()
    """One a second of the last 15 minutes, one in 10 s before, for up to two hours."""
    gpus: tuple[int, ...] = ()
    """Indices of the GPUs that it uses, in `MachineSample.gpus`."""
    longest_gap_s: float = 0.0
    """Between two steps of the whole run, without compiling, evaluating and saving."""
    pauses: dict[int, Pause] = field(default_factory=dict)
    """By the flag of `flatout_agent.wire.pulse` that marks the kind."""
    p99_gap_s: float = 0.0
    first_step_scale: float | None = None
    """Loss scale of the gradient scaler at its first step."""
    epochs: int = 0
    """Begun so far."""
    early_step_s: float | None = None
    """Median duration of steps 50 to 250, of the shapes seen most in them."""
    early_shapes: int | None = None
    new_shapes_s: Sequence[float] = ()
    """When inputs had shapes that were not seen before, in Unix time."""
    early_wait_s: float | None = None
    early_clock_mhz: float | None = None
    """Median clock of its GPU meanwhile."""
    waits_for_input: bool = False
    """It waits for a line from its user: a debugger, `input()`."""
    ended: bool = False
    """Its process is gone, while the job may go on."""

    @property
    def usual_gap_s(self) -> float:
        """The longest gap that is usual after its last step; pauses count where one may be due."""
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
    """Of all its processes now."""
    program: str = "train.py"
    """As the user typed it, for commands."""
    run_folder: str | None = None
    listed_itself: bool = False
    """No `flatout run` has started it: nobody can tell how it ended."""
    folder: str | None = None
    boosts: tuple[str, ...] = ()
    """Of its plan."""
    wait_boost: str | None = None
    """The boost that would speed its loader up, where one applies and is not in the plan."""
    largest_save_bytes: int | None = None
    """Of the checkpoints it has written."""
    ended_s: float | None = None
    exit_code: int | None = None
    """As a shell shows it."""
    explained: tuple[str, str, tuple[str, ...]] | None = None
    """Of a crash: what `explain` says: title, cause, cures."""
    stacks: str | None = None
    """File with the stacks of all its ranks, written when it hung."""


@dataclass
class View:
    """All that a rule may look at."""

    now_s: float
    hostname: str
    machine: Sequence[MachineSample] = field(default_factory=tuple)
    """One a second for 15 minutes, before that one in 10 s for up to two hours; oldest first."""
    job: JobHistory | None = None
    """The job in question; None: the machine alone."""
    jobs: Sequence[JobHistory] = ()
    """All jobs on this machine that are watched."""

    @property
    def latest(self) -> MachineSample | None:
        """The machine now."""
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
    """Of all rules, by code."""
    return sorted(path for path in FOLDER.glob("*_*.py") if not path.stem.startswith("_"))


def every() -> list[RuleModule]:
    """The modules of all rules, by code."""
    names = (path.stem for path in files())
    return [
        cast("RuleModule", importlib.import_module(f"flatout.watching.alerts.{name}"))
        for name in names
    ]


def id_of(module: RuleModule) -> str:
    """The id of a rule: job-hangs of watching.alerts.hang001_job_hangs."""
    return module.__name__.rpartition(".")[2].partition("_")[2].replace("_", "-")
