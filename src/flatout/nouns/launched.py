"""Launched: a program that an engine (Slurm, ssh, Kubernetes ...) runs on nodes of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flatout.nouns.explained import Explained

LaunchState = Literal["queued", "running", "ended", "failed", "cancelled", "unknown"]
"""ended: with exit code 0; unknown: the engine does not answer, or has forgotten the job."""
FINAL: frozenset[LaunchState] = frozenset({"ended", "failed", "cancelled"})
JOB_FILE = "job.json"
"""The file in a launch's folder that holds its SubmittedJob."""


@dataclass(frozen=True)
class LeftOut:
    """A file or folder of the code folder that is not sent."""

    path: str
    """Path relative to the code folder, with `/`."""
    reason: str
    size_bytes: int | None = None


@dataclass(frozen=True)
class PackedCode:
    """The files of the code folder that are sent with the program."""

    folder: Path
    files: tuple[str, ...] = ()
    """Paths relative to the folder, with `/`; sorted."""
    size_bytes: int = 0
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asks of an engine."""

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
    """Time limit in seconds, or None for the engine's default."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of the program, from --env NAME=VALUE."""
    image: str = ""
    """Container image; empty for none or the engine's default."""
    plan: Path | None = None
    """flatout.toml below the code folder."""
    lock: str = ""
    """The environment's packages, a line each: numpy==2.3.4; empty if unknown."""
    packed: PackedCode | None = None
    """The packed code, or None if the engine's nodes see the code folder directly."""
    restarts: int = 0
    """How often a failed program is started again."""
    partition: str = ""
    account: str = ""
    queue: str = ""
    hosts: tuple[str, ...] = ()
    python: str = ""
    """Python of the nodes; empty for the engine's default."""
    options: tuple[tuple[str, str], ...] = ()
    """Further options of this engine, from --set NAME=VALUE."""
    launch_folder: Path = Path()
    """Full path of the folder for its files, below the code folder."""

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
    """A request that its engine would accept."""

    request: LaunchRequest
    """The request with what only the engine knows: how many GPUs `all` are, which partition."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Useful facts that are not problems, such as when it would start."""


@dataclass(frozen=True)
class LaunchFile:
    """A plain, commented file that the engine reads and the user may edit."""

    path: str
    """Path relative to the launch's folder."""
    text: str
    executable: bool = False


@dataclass(frozen=True)
class LaunchCosts:
    """The resources that a request asks for."""

    nodes: int
    gpus: int | None
    """GPUs on all nodes, or None if unknown (`all` of each node)."""
    hours: float | None
    """Hours of the longest run, or None without a limit."""
    gpu_model: str = ""
    price_per_hour: float | None = None
    """US dollars for all nodes, or None if the engine does not know."""
    notes: tuple[str, ...] = ()

    @property
    def gpu_hours(self) -> float | None:
        """The most GPU hours it can use."""
        return None if self.gpus is None or self.hours is None else self.gpus * self.hours


@dataclass(frozen=True)
class PreparedLaunch:
    """Everything known before anything is written or submitted."""

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
    """Folder of the launch: its files, and its logs if the engine writes them here."""
    submitted_at: float
    """Seconds since 1970."""
    nodes: int = 1
    extra: dict[str, str] = field(default_factory=dict)
    """What this engine needs to find it again."""


@dataclass(frozen=True)
class JobState:
    """What the engine says about a job."""

    state: LaunchState
    detail: str = ""
    """Why it waits or failed: the engine's own words, made plain."""
    returncode: int | None = None
    nodes: tuple[str, ...] = ()
    """Names of the nodes, once known."""
    first: str = ""
    """In a failed job, the source of the node that ended first, as in its LogLines."""

    @property
    def final(self) -> bool:
        """Whether it can no longer change."""
        return self.state in FINAL


@dataclass(frozen=True)
class LogLine:
    """A line that a node or rank of the job has written."""

    source: str
    """`node 0` or `gpu-02`; empty for the engine itself."""
    text: str


@dataclass(frozen=True)
class FirstFailure:
    """The node or rank of a failed job whose error came first."""

    source: str
    error: str
    """One line."""
    explained: Explained | None = None
    """The explained error, or None if unknown."""
    tail: tuple[str, ...] = ()
    """The last lines of the rank's own log, if it can be read from here."""


@dataclass(frozen=True)
class LaunchEngine:
    """An engine: its name and the options it understands."""

    title: str
    since: str
    needs: str
    """What must be present to submit, in a few words."""
    travels: bool
    """Whether the code folder is sent; False if nodes see it, as on a shared file system."""
    understands: tuple[str, ...] = ()
    """LaunchRequest fields beyond those of all engines: partition, account, queue, image ..."""
    settings: tuple[str, ...] = ()
    """Names for --set; ("*",) if any name is passed on to the engine."""
    logs_end: bool = False
    """Whether its `logs` ends once the job has ended and every line was given."""
