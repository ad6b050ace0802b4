"""The part of the contract (see `wire`) for processes that train one job together."""

from __future__ import annotations

from dataclasses import dataclass

RANK_ENV = "FLATOUT_RANK"
SIZE_ENV = "FLATOUT_RANKS"
"""Variables set in each rank's program. They are not RANK and WORLD_SIZE, since a script that finds
those starts DDP."""
LOCAL_SIZE_ENV = "FLATOUT_LOCAL_RANKS"
"""The ranks of this machine, if there are several machines."""
REFUSED_EXIT = 78
"""Exit code of a rank that has refused to train: see `RanksRefused`."""
SAVED_EXIT = 75
"""Exit code of a program that was warned, has saved its state, and can continue from it."""
WARNING_ENV = "FLATOUT_WARNING"
"""Name of the signal with which a cluster warns of the end: save and end with SAVED_EXIT. Programs
that do not know it are to train on.
"""
OWN_DDP = "ddp"
"""Used instead of a framework's name: the program itself starts its process group."""
LOST_EXIT = 79
"""Exit code of a rank that has lost the others, as one of them is gone or does not answer."""


@dataclass(frozen=True)
class RankOrders:
    """The process is one of several that train one job together, each on its own rows."""

    rank: int
    size: int
    store: str
    """Path of a file that does not exist yet, where the ranks meet; empty if there is one rank."""
    seed: int
    """Seed of all random numbers that the script does not seed itself, the same in all ranks."""
    threads: int | None = None
    """Compute threads of this rank, or None if the user sets a number."""
    scratch: str = ""
    """Folder that receives everything the program would save; empty if it may save (rank 0)."""
    protect: str = ""
    """Folder below which a rank with a scratch folder must not overwrite anything."""
    timeout_s: float = 600.0
    """A rank that waits longer than this for the others ends with an error."""
    address: str = ""
    """host:port, or [v6]:port, where rank 0 opens the store; empty if all ranks are on one machine
    and meet in `store`."""
    host: str = ""
    """Address of this machine for ranks on other machines; empty if there are none."""
    rounding: float = 0.0
    """For a single process used for comparison: its gradients are disturbed by this share."""
    native: str = ""
    """The framework that itself divides the work, with torchrun's variables; empty if flatout cuts
    rows."""
    scale_batch: bool = False
    """For a framework: whether each rank has a whole batch."""
    machines: int = 1
    """The number of machines with ranks, for a program that itself divides its work."""
    machine_size: int = 0
    """Ranks of this machine, or 0 for all."""


@dataclass(frozen=True)
class RegionSeen:
    """The findings about the calls of one root model."""

    model: str
    """Class name."""
    cut: bool
    """Whether each rank computes its own rows."""
    reason: str = ""
    """Why it is not cut, so each rank computes all of it."""
    rows: int | None = None
    """Rows of the batch used for this finding."""
    error: float | None = None
    """Largest relative difference between the joined rows and the whole batch."""
    random: bool = False
    """Whether the call draws random numbers; each rank draws its own."""
    gradient_error: float | None = None
    """Relative difference between the ranks' combined gradients and the whole batch's."""
    training: bool = True


@dataclass(frozen=True)
class RanksSeen:
    """How the ranks train together, written after the first step and at the end."""

    size: int
    backend: str
    regions: tuple[RegionSeen, ...] = ()
    exchanged_bytes: int = 0
    """Gradients per step, last seen."""
    exchange_s: float = 0.0
    """Mean seconds per step for exchanging gradients, including waits for other ranks."""
    region_s: float = 0.0
    """Mean seconds per step for joining and splitting rows, including waits."""
    steps: int = 0
    gradient_error: float | None = None
    """The largest gradient error of the regions."""
    native: str = ""
    """The framework that itself divided the work, or OWN_DDP: each rank counts its own samples."""
    kind: str = "ranks"


@dataclass(frozen=True)
class NativeSeen:
    """A program that trains alone can also train on several processes."""

    framework: str
    """accelerate, fabric, lightning, transformers, or OWN_DDP."""
    against: str = ""
    """Why it should not be started that way: it would compute something else."""
    random: bool = False
    """Whether its models draw random numbers (dropout)."""
    batches: tuple[int, ...] = ()
    """Sizes of the batches that its ranks would divide."""
    kind: str = "native"


@dataclass(frozen=True)
class RanksRefused:
    """The ranks cannot train this job together correctly; the program was ended."""

    reason: str
    """Text for people: the findings, with numbers."""
    next_step: str = ""
    kind: str = "refused"
