"""Programs that know ranks themselves: how each rank is started, which is as torchrun would.

The variables are torchrun's, the starting is ours: who ended first is known, rank 0 keeps the
terminal, and no rank stays when another is gone. Nothing is kept off the files of the user: such a
program lets one rank save, or each its own part.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout.running.processes import Process
from flatout.running.rank_place import RankPlace, interface
from flatout_agent import wire

HERE = "127.0.0.1"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
GROUPS = re.compile(
    r"^[^#\n]*\b(?:init_process_group|init_device_mesh|init_distributed\w*)\(", re.MULTILINE
)
"""Calls that start a group of processes."""
SPAWNS = re.compile(r"^[^#\n]*\b(?:spawn|start_processes|Process)\(", re.MULTILINE)
"""It starts all of its processes as well: nothing can start it as one of them."""


@dataclass(frozen=True)
class NativeStart:
    """As what a program is started."""

    framework: str
    """accelerate, fabric, lightning, transformers, or `wire.OWN_DDP`."""
    scale_batch: bool = False
    """Each rank has a whole batch, where the framework would give it one."""
    port: int = 0
    """Where the ranks meet; a new one for each start."""

    @property
    def keeps_batch(self) -> bool:
        """The batch of all ranks together is that of one process."""
        return not self.scale_batch and self.framework != wire.OWN_DDP

    def environment(
        self,
        local: int,
        size: int,
        base: Mapping[str, str],
        on_gpus: bool,
        place: RankPlace | None = None,
        by_slurm: bool = False,
    ) -> dict[str, str]:
        """`base` with what torchrun would set for this rank.

        local: of the `size` ranks of this machine; place: of this machine; None: it is the only
        one; by_slurm: a step of Slurm's has started flatout.
        """
        if place is None:
            place = RankPlace(0, size, f"{HERE}:{self.port}", HERE)
        variables = {**base, **_as_torchrun(local, size, place)}
        if not on_gpus:
            # As `accelerate launch --cpu`: else each rank on CPU cores takes itself for alone.
            variables["ACCELERATE_USE_CPU"] = "true"
        if place.machines > 1:
            variables.update(_over_machines(place, base))
            if by_slurm:
                variables.update(_as_slurm_tasks(local, place))
        return variables

    def begun(self) -> NativeStart:
        """The same on a port that is free now."""
        with socket.socket() as probe:
            probe.bind((HERE, 0))
            return dataclasses.replace(self, port=probe.getsockname()[1])


def _as_torchrun(local: int, size: int, place: RankPlace) -> dict[str, str]:
    """What torchrun would set."""
    rank, total = str(place.first + local), str(place.total)
    host, port = place.meeting
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": total,
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": str(place.machine),
        "GROUP_WORLD_SIZE": str(place.machines),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": total,
        "ROLE_NAME": "default",
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"flatout-{port}",  # Lightning looks for it
    }


def _over_machines(place: RankPlace, base: Mapping[str, str]) -> dict[str, str]:
    """What some programs ask for besides, and the network that gloo is to use.

    By itself gloo takes the address of the host's name, which on many systems is 127.0.1.1: the
    ranks of other machines would look for it on their own.
    """
    variables = {"NODE_RANK": str(place.machine), "NNODES": str(place.machines)}
    if not base.get(GLOO_INTERFACE) and (name := interface(place.host)) is not None:
        variables[GLOO_INTERFACE] = name
    return variables


def _as_slurm_tasks(local: int, place: RankPlace) -> dict[str, str]:
    """As if Slurm had started a task for each rank: some programs read nothing else."""
    rank, total = str(place.first + local), str(place.total)
    return {
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(place.machine),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), total),
    }


def starts_group(script: Path | None) -> bool:
    """Whether this file starts a group of processes, by its text: where nothing may be tried."""
    try:
        text = script.read_text(encoding="utf-8", errors="replace") if script is not None else ""
    except OSError:
        return False
    return bool(GROUPS.search(text)) and not SPAWNS.search(text)


def seen(processes: Iterable[Process]) -> wire.NativeSeen | None:
    """What a program that trained alone was made for; None: for one device."""
    return next((process.native for process in processes if process.native is not None), None)
