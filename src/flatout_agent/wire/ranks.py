"""The part of the contract (see `wire`) that processes use which train one job together."""

from __future__ import annotations

from dataclasses import dataclass

RANK_ENV = "FLATOUT_RANK"
SIZE_ENV = "FLATOUT_RANKS"
"""Set in each rank's program. Not RANK and WORLD_SIZE: a script that finds those starts DDP."""
LOCAL_RANK_ENV = "FLATOUT_LOCAL_RANK"
LOCAL_SIZE_ENV = "FLATOUT_LOCAL_RANKS"
"""Among the ranks of this machine, where there are several machines."""
REFUSED_EXIT = 78
"""Exit code of a rank that has refused to train: see `RanksRefused`."""
SAVED_EXIT = 75
"""Exit code of a program that was warned, has saved its state, and would go on from there."""
WARNING_ENV = "FLATOUT_WARNING"
"""Name of the signal by which a cluster warns of the end: save and end with SAVED_EXIT. Programs
that know nothing of it are to train on.
"""
OWN_DDP = "ddp"
"""Instead of a framework: the program starts its group of processes itself."""
LOST_EXIT = 79
"""Exit code of a rank that has lost the others: one of them is gone or does not answer."""


@dataclass(frozen=True)
class RankOrders:
    """The process is one of several that train one job together, each on its own rows."""

    rank: int
    size: int
    store: str
    """Path of a file that is not there yet, where the ranks meet; empty: there is one rank."""
    seed: int
    """Of all random numbers that the script does not seed itself: the same in all ranks."""
    threads: int | None = None
    """Compute threads of this rank; None: the user names a number."""
    scratch: str = ""
    """Folder where everything goes that the program would save; empty: it may save (rank 0)."""
    protect: str = ""
    """Folder below which a rank with a scratch folder may overwrite nothing."""
    timeout_s: float = 600.0
    """A rank that waits longer than this for the others ends with an error."""
    address: str = ""
    """host:port, or [v6]:port, where rank 0 opens the store; empty: all ranks are on one machine
    and meet in `store`."""
    host: str = ""
    """Address of this machine that ranks on other machines reach; empty: there are none."""
    rounding: float = 0.0
    """Of a single process, for comparison: its gradients are disturbed by this share of them."""
    native: str = ""
    """The framework that divides the work itself, with torchrun's variables; empty: rows are cut
    here."""
    scale_batch: bool = False
    """Of a framework: each rank has a whole batch."""
    machines: int = 1
    """That have ranks; of a program that divides its work itself."""
    machine_size: int = 0
    """Ranks of this machine; 0: all."""


@dataclass(frozen=True)
class RegionSeen:
    """What was found out about the calls of one root model."""

    model: str
    """Class name."""
    cut: bool
    """Each rank computes its own rows."""
    reason: str = ""
    """Why it is not cut: each rank computes all of it."""
    rows: int | None = None
    """Rows of the batch that this was found out on."""
    error: float | None = None
    """Largest relative difference between the joined rows and the whole batch."""
    random: bool = False
    """The call draws random numbers: each rank draws its own."""
    gradient_error: float | None = None
    """Relative difference between the ranks' gradients together and the whole batch's."""
    training: bool = True


@dataclass(frozen=True)
class RanksSeen:
    """How the ranks train together: written when the first step has ended, and at the end."""

    size: int
    backend: str
    regions: tuple[RegionSeen, ...] = ()
    exchanged_bytes: int = 0
    """Gradients per step, last seen."""
    exchange_s: float = 0.0
    """Per step, mean: exchanging gradients, waits for other ranks included."""
    region_s: float = 0.0
    """Per step, mean: joining and splitting rows, waits included."""
    steps: int = 0
    gradient_error: float | None = None
    """The largest of the regions'."""
    native: str = ""
    """The framework that divided the work itself, or OWN_DDP: each rank counts its own samples."""
    kind: str = "ranks"


@dataclass(frozen=True)
class NativeSeen:
    """A program that trains alone is made to train on several processes as well."""

    framework: str
    """accelerate, fabric, lightning, transformers, or OWN_DDP."""
    against: str = ""
    """Why it should not be started as it is made to: it would compute something else."""
    random: bool = False
    """Its models draw random numbers (dropout)."""
    batches: tuple[int, ...] = ()
    """Sizes of the batches that its ranks would divide between them."""
    kind: str = "native"


@dataclass(frozen=True)
class RanksRefused:
    """The ranks cannot train this job together and be right; the program was ended."""

    reason: str
    """For people: what was seen, with numbers."""
    next_step: str = ""
    kind: str = "refused"
