"""Programs that know ranks themselves: how each rank is started.

The variables are those of torchrun, but flatout starts the ranks: it knows which one ended first,
rank 0 keeps the terminal, and no rank stays when another is gone. Their files are not redirected:
in such a program one rank saves, or each saves its own part.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from flatout.nouns.nodes import RankPlace
from flatout_agent import wire

HERE = "127.0.0.1"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
GROUPS = re.compile(
    r"^[^#\n]*\b(?:init_process_group|init_device_mesh|init_distributed\w*)\(", re.MULTILINE
)
"""Calls that start a group of processes."""
SPAWNS = re.compile(r"^[^#\n]*\b(?:spawn|start_processes|Process)\(", re.MULTILINE)
"""Calls that start all processes as well: such a script cannot be started as one of them."""


@dataclass(frozen=True)
class NativeStart:
    """How a program that knows ranks is started."""

    framework: str
    """accelerate, fabric, lightning, transformers, or `wire.OWN_DDP`."""
    scale_batch: bool = False
    """Each rank has a whole batch, if the framework would give it one."""
    port: int = 0
    """Where the ranks meet; each start has a new one."""

    @property
    def keeps_batch(self) -> bool:
        """Whether all ranks together have the batch of one process."""
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

        local: its number among the `size` ranks of this machine; place: of this machine, or None
        if it is the only one; by_slurm: a step of Slurm has started flatout.
        """
        if place is None:
            place = RankPlace(0, size, f"{HERE}:{self.port}", HERE)
        variables = {**base, **_as_torchrun(local, size, place)}
        if not on_gpus:
            # As `accelerate launch --cpu`: else each rank on CPU cores believes that it is alone.
            variables["ACCELERATE_USE_CPU"] = "true"
        if place.machines > 1:
            variables["NODE_RANK"], variables["NNODES"] = str(place.machine), str(place.machines)
            # By default gloo takes the address of the host's name, which on many systems is
            # 127.0.1.1: ranks of other machines would look for this one on their own machine.
            if not base.get(GLOO_INTERFACE) and (card := interface(place.host)) is not None:
                variables[GLOO_INTERFACE] = card
            if by_slurm:
                # As if Slurm had started a task for each rank: some programs read nothing else.
                variables["SLURM_PROCID"] = str(place.first + local)
                variables["SLURM_LOCALID"] = str(local)
                variables["SLURM_NODEID"] = str(place.machine)
                for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"):
                    variables[name] = str(place.total)
        return variables

    def begun(self) -> NativeStart:
        """The same on a port that is free now."""
        with socket.socket() as probe:
            probe.bind((HERE, 0))
            return dataclasses.replace(self, port=probe.getsockname()[1])


def _as_torchrun(local: int, size: int, place: RankPlace) -> dict[str, str]:
    """What torchrun sets."""
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


def interface(address: str) -> str | None:
    """Name of the network interface that has this address, or None if unknown."""
    try:
        cards = psutil.net_if_addrs()
    except (OSError, psutil.Error):
        return None
    bare = address.partition("%")[0]
    for name, entries in cards.items():
        if any(entry.address.partition("%")[0] == bare for entry in entries):
            return name
    return None


def starts_group(script: Path | None) -> bool:
    """Whether this file starts a group of processes, by its text: for runs without a trial."""
    try:
        text = script.read_text(encoding="utf-8", errors="replace") if script is not None else ""
    except OSError:
        return False
    return bool(GROUPS.search(text)) and not SPAWNS.search(text)
