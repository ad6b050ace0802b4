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
from flatout_agent import wire

HERE = "127.0.0.1"
OWN_GROUP = re.compile(r"^[^#\n]*\b(?:init_process_group|init_device_mesh)\(", re.MULTILINE)
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
        self, rank: int, size: int, base: Mapping[str, str], on_gpus: bool
    ) -> dict[str, str]:
        """`base` with what torchrun would set for this rank of one machine."""
        # As `accelerate launch --cpu`: without it each rank on CPU cores takes itself for alone.
        cpu = {} if on_gpus else {"ACCELERATE_USE_CPU": "true"}
        return {
            **base,
            **cpu,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": HERE,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": f"flatout-{self.port}",  # Lightning looks for it
        }

    def begun(self) -> NativeStart:
        """The same on a port that is free now."""
        with socket.socket() as probe:
            probe.bind((HERE, 0))
            return dataclasses.replace(self, port=probe.getsockname()[1])


def own_ddp(script: Path | None) -> NativeStart | None:
    """Of a script that is not tried first: whether it starts a group of processes by itself."""
    try:
        text = script.read_text(encoding="utf-8", errors="replace") if script is not None else ""
    except OSError:
        return None
    own = OWN_GROUP.search(text) is not None and SPAWNS.search(text) is None
    return NativeStart(wire.OWN_DDP) if own else None


def seen(processes: Iterable[Process]) -> wire.NativeSeen | None:
    """What a program that trained alone was made for; None: for one device."""
    return next((process.native for process in processes if process.native is not None), None)
