"""How many ranks train a job together, and what each of them gets of the machine."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flatout.nouns.errors import UserError
from flatout.nouns.nodes import RankPlace
from flatout.running.one.command import Command
from flatout.running.ranks.native import NativeStart
from flatout_agent import wire

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
THREADS = "OMP_NUM_THREADS"
HASH_SEED = "PYTHONHASHSEED"
OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_")
"""What torchrun sets. A script that finds RANK would start DDP by itself."""
TASKS = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
    *("SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)
"""Beginnings of the names by which Slurm describes the one task that it has started on each node. A
program that finds them takes each node for one process.
"""
SECRET = "FLATOUT_JOB"
"""Identifies the nodes of a job to each other; the program must not see it."""
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")


@dataclass(frozen=True)
class RankLayout:
    """`size` ranks on CPU cores of this machine, or each on a GPU of its own."""

    size: int
    seed: int
    threads: int | None = None
    """Compute threads of each rank, or None if the user has set a number."""
    gpus: tuple[str, ...] = ()
    """Named as by the user or the driver, in physical order; empty on CPU cores."""
    place: RankPlace | None = None
    """None if there are no ranks on other machines."""
    native: NativeStart | None = None
    """Set if the program divides its work itself, by torchrun's variables; else rows are cut."""
    rounding: float = 0.0
    """For one process, as a comparison: its gradients are disturbed by this share of their size."""

    @property
    def first(self) -> int:
        """The first rank on this machine."""
        return 0 if self.place is None else self.place.first

    @property
    def total(self) -> int:
        """The number of ranks on all machines."""
        return self.size if self.place is None else self.place.total

    def orders(self, local: int, store: Path, scratch: str, protect: str) -> wire.RankOrders:
        """The orders of one rank. local: its number on this machine; scratch: "" if it may save."""
        own = self.first + local, self.total, str(store), self.seed, self.threads
        if self.native is not None:
            return wire.RankOrders(
                *own,
                "",
                protect,
                native=self.native.framework,
                scale_batch=self.native.scale_batch,
                machines=1 if self.place is None else self.place.machines,
                machine_size=self.size,
            )
        orders = wire.RankOrders(*own, scratch, protect, rounding=self.rounding)
        if self.place is None:
            return orders
        return replace(orders, address=self.place.store, host=self.place.host)

    def environment(self, local: int, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with what makes a program this rank, and without what torchrun sets."""
        foreign = OTHERS if self.place is None else OTHERS + TASKS
        variables = {name: value for name, value in base.items() if not name.startswith(foreign)}
        variables.pop(SECRET, None)
        variables[wire.RANK_ENV] = str(self.first + local)
        variables[wire.SIZE_ENV] = str(self.total)
        if self.place is not None:
            variables[wire.LOCAL_SIZE_ENV] = str(self.size)
        if variables.get(HASH_SEED, "random") == "random":
            variables[HASH_SEED] = str(self.seed)
        if self.threads is not None:
            variables[THREADS] = str(self.threads)
        if self.gpus:
            if VISIBLE not in base:
                variables.setdefault(ORDER, "PCI_BUS_ID")  # the driver's own numbers
            variables[VISIBLE] = rotated(self.gpus, local if self.native is None else 0)
        if self.native is not None:
            own = local, self.size, variables, bool(self.gpus), self.place
            by_slurm = "SLURM_PROCID" in base
            return self.native.environment(*own, by_slurm=by_slurm)
        return variables

    def begun(self) -> RankLayout:
        """The same for one start: what serves only once is new."""
        if self.native is None or self.place is not None:  # node 0 has named the port
            return self
        return replace(self, native=self.native.begun())


def alone(base: Mapping[str, str]) -> dict[str, str]:
    """`base` for a program that is to train alone, though an engine has started several nodes."""
    without = (*OTHERS, *TASKS, SECRET)
    return {name: value for name, value in base.items() if not name.startswith(without)}


def rotated(gpus: Sequence[str], rank: int) -> str:
    """All GPUs, the rank's own first: cuda:0 is its own, and it sees its peers."""
    return ",".join([*gpus[rank:], *gpus[:rank]])


def asked_layout(
    ranks: int | None,
    gpus: str | None,
    cores: int,
    present: int,
    environ: Mapping[str, str],
    seed: int | None = None,
    least: int = 2,
) -> RankLayout:
    """What `--ranks` and `--gpus` ask for, one of which is given. Raises UserError.

    cores: how many may be used; present: how many GPUs the driver knows; seed: drawn if None;
    least: how many ranks there must be here: one is enough if other machines have some too.
    """
    visible = _visible(present, environ.get(VISIBLE))
    chosen: tuple[str, ...] = ()
    if gpus is not None:
        chosen = _named(gpus, visible, least)
        size = len(chosen)
    else:
        assert ranks is not None
        size = ranks
        # A GPU for each rank, or none if there is none or the user has hidden them all.
        if visible and size > len(visible):
            raise UserError(
                f"--ranks {size}: there are {len(visible)} GPUs, and each rank needs its own",
                f"--gpus all, or on CPU cores: {VISIBLE}= flatout run --ranks {size} train.py",
            )
        chosen = visible[:size]
        if not chosen and size > cores:
            raise UserError(
                f"--ranks {size} needs {size} CPU cores; this process may use {cores}",
                f"--ranks {cores}" if cores > 1 else "run it without --ranks",
            )
    if size < least:
        raise UserError("one rank is the script as written", "run it without --ranks and --gpus")
    threads = None if environ.get(THREADS) else max(1, cores // size)
    drawn = random.SystemRandom().getrandbits(31) if seed is None else seed
    return RankLayout(size, drawn, threads, chosen)


def fewer(of: RankLayout, size: int, cores: int) -> RankLayout:
    """The same with fewer ranks."""
    threads = None if of.threads is None else max(1, cores // size)
    return replace(of, size=size, threads=threads, gpus=of.gpus[:size])


def check_command(command: Command) -> None:
    """Raise UserError for a command that starts ranks itself."""
    name = Path(command.display[0]).name
    if name in LAUNCHERS:
        raise UserError(
            f"{name} starts the ranks itself",
            "run it without --ranks and --gpus, or name the script alone: "
            "flatout run --ranks 2 train.py",
        )


def _visible(present: int, variable: str | None) -> tuple[str, ...]:
    """The GPUs that the program would see. Like CUDA it reads up to the first bad entry."""
    if variable is None or not present:
        return tuple(str(index) for index in range(present))
    entries: list[str] = []
    for entry in (part.strip() for part in variable.split(",")):
        if not entry or (entry.lstrip("-").isdecimal() and int(entry) not in range(present)):
            break
        entries.append(entry)
    return tuple(entries)


def _named(asked: str, visible: tuple[str, ...], least: int) -> tuple[str, ...]:
    if not visible:
        raise UserError(
            "there is no NVIDIA GPU here that the script could use",
            "--ranks N trains on N CPU cores; flatout doctor says why a GPU is not seen",
        )
    if asked == "all":
        if len(visible) < least:
            raise UserError("there is only one GPU", "run it without --gpus")
        return visible
    if asked.isdecimal():
        if int(asked) > len(visible):
            raise UserError(f"--gpus {asked}: there are {len(visible)}", "--gpus all")
        return visible[: int(asked)]
    names = [part.strip() for part in asked.split(",")]
    unknown = [name for name in names if name not in visible]
    if unknown or len(set(names)) < len(names):
        wrong = f"there is no GPU {unknown[0]!r}" if unknown else "a GPU is named twice"
        raise UserError(f"--gpus {asked}: {wrong}; there are {', '.join(visible)}", "--gpus all")
    return tuple(name for name in visible if name in names)
