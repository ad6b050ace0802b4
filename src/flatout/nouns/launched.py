"""Launched: a program that an engine (Slurm, ssh, Kubernetes ...) runs on nodes of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flatout.nouns.explained import Explained

LaunchState = Literal["queued", "running", "ended", "failed", "cancelled", "unknown"]
"""ended: with exit code 0; unknown: the engine does not answer, or knows the job no more."""
FINAL: frozenset[LaunchState] = frozenset({"ended", "failed", "cancelled"})
JOB_FILE = "job.json"
"""In the folder of a launch: its SubmittedJob."""


@dataclass(frozen=True)
class LeftOut:
    """A file or folder of the code folder that does not travel."""

    path: str
    """Below the code folder, with `/`."""
    reason: str
    size_bytes: int | None = None


@dataclass(frozen=True)
class PackedCode:
    """The files of the code folder that travel with the program."""

    folder: Path
    files: tuple[str, ...] = ()
    """Below the folder, with `/`; sorted."""
    size_bytes: int = 0
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asks an engine for."""

    engine: str
    argv: tuple[str, ...]
    """The program as the user wrote it: (train.py, --epochs, 3), (-m, package.train) or, with a
    leading `--`, any command."""
    name: str
    folder: Path
    """The code folder; the program's paths are relative to it."""
    nodes: int = 1
    gpus: int | Literal["all"] | None = None
    """GPUs of each node, or None to use CPU cores."""
    ranks: int | None = None
    """Processes on each node, or None for one per GPU (one without GPUs)."""
    time_s: float | None = None
    """The longest run, or None for the engine's default."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of the program, from --env NAME=VALUE."""
    image: str = ""
    """Container image; empty: none, or the engine's default."""
    plan: Path | None = None
    """flatout.toml below the code folder."""
    lock: str = ""
    """The environment's packages as `flatout env freeze` writes them; empty: not known."""
    packed: PackedCode | None = None
    """The packed code, or None if the engine's nodes see the code folder itself."""
    restarts: int = 0
    """How often a program that fails is started again."""
    partition: str = ""
    account: str = ""
    queue: str = ""
    hosts: tuple[str, ...] = ()
    python: str = ""
    """Python of the nodes; empty: the engine's default."""
    options: tuple[tuple[str, str], ...] = ()
    """Others of this engine, from --set NAME=VALUE."""
    launch_folder: Path = Path()
    """Where its files will lie, full path: below the code folder."""

    def option(self, name: str, default: str = "") -> str:
        """The last value given for that option of the engine."""
        return dict(self.options).get(name, default)

    @property
    def shown(self) -> str:
        """The program as one would type it."""
        import shlex

        return shlex.join(self.argv[1:] if self.argv[:1] == ("--",) else self.argv)


@dataclass(frozen=True)
class CheckedLaunch:
    """A request that its engine would take."""

    request: LaunchRequest
    """With what only the engine knows filled in: how many GPUs `all` are, on which partition."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Worth knowing, and nothing wrong: when it would start."""


@dataclass(frozen=True)
class LaunchFile:
    """A file that the engine reads: plain, commented, the user's to keep and edit."""

    path: str
    """Below the folder of the launch."""
    text: str
    executable: bool = False


@dataclass(frozen=True)
class LaunchCosts:
    """What is asked for, before it is."""

    nodes: int
    gpus: int | None
    """In all; None: not known (`all` of each node)."""
    hours: float | None
    """The longest run, or None if no limit was named."""
    gpu_model: str = ""
    price_per_hour: float | None = None
    """US dollars for all nodes, where the engine knows."""
    notes: tuple[str, ...] = ()

    @property
    def gpu_hours(self) -> float | None:
        """At most."""
        return None if self.gpus is None or self.hours is None else self.gpus * self.hours


@dataclass(frozen=True)
class PreparedLaunch:
    """All that is known before anything is written or submitted."""

    request: LaunchRequest
    files: tuple[LaunchFile, ...]
    costs: LaunchCosts
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubmittedJob:
    """A job that an engine has accepted."""

    engine: str
    id: str
    """The engine's name for it."""
    name: str
    folder: str
    """Of the launch: its files, its logs where the engine writes them here."""
    submitted_at: float
    """Seconds since 1970."""
    nodes: int = 1
    extra: dict[str, str] = field(default_factory=dict)
    """What this engine needs to ask for it again."""


@dataclass(frozen=True)
class JobState:
    """What the engine says of a job."""

    state: LaunchState
    detail: str = ""
    """Why it waits, or why it failed, in the engine's own words made plain."""
    returncode: int | None = None
    nodes: tuple[str, ...] = ()
    """Their names, once known."""
    first: str = ""
    """Of a job that failed: the source of the node that ended first, as in its LogLines."""

    @property
    def final(self) -> bool:
        """Whether it will not change any more."""
        return self.state in FINAL


@dataclass(frozen=True)
class LogLine:
    """A line that a node or rank of the job has written."""

    source: str
    """As in `node 0` or `gpu-02`; empty: the engine itself."""
    text: str


@dataclass(frozen=True)
class FirstFailure:
    """Of a job that failed: the node or rank whose error came first."""

    source: str
    error: str
    """One line."""
    explained: Explained | None = None
    """The explained error, or None if unknown."""
    tail: tuple[str, ...] = ()
    """The last lines of the rank's own log, where that can be read from here."""


@dataclass(frozen=True)
class LaunchEngine:
    """An engine: what it is called and which options it understands."""

    title: str
    since: str
    needs: str
    """What must be there to submit, in a few words."""
    travels: bool
    """Whether the code folder is sent along; False: nodes see it, as on a shared file system."""
    understands: tuple[str, ...] = ()
    """Fields of LaunchRequest beside those of all engines: partition, account, queue, image ..."""
    settings: tuple[str, ...] = ()
    """Names for --set; ("*",): any, handed through to the engine."""
    logs_end: bool = False
    """Its `logs` ends once the job has ended and every line was given."""
