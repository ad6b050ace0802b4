"""Several nodes on this machine: a process of `flatout run` for each, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from ports import free_port
from processes import under_orders
from running.stand_in import Flatout

LONG_S = 120.0


@dataclass(frozen=True)
class NodeEnd:
    """What one node's flatout did."""

    returncode: int
    stdout: str
    stderr: str


class Nodes:
    """`count` nodes with so many ranks each."""

    def __init__(self, folder: Path, inject: Path, ranks: tuple[int, ...] = (1, 1)) -> None:
        self.ranks = ranks
        self.flatouts = []
        for index in range(len(ranks)):
            own = folder / f"node{index}"
            own.mkdir()
            self.flatouts.append(Flatout(own, inject))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.met = folder / "met"
        self.port = free_port()

    def environ(self, index: int) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("OMP")}
        return {
            **own,
            "MET": str(self.met),
            "FLATOUT_NODES": str(len(self.ranks)),
            "FLATOUT_NODE": str(index),
            "FLATOUT_LEADER": f"127.0.0.1:{self.port}",
            "FLATOUT_JOB": "a secret",
            "FLATOUT_NODE_NAME": f"gpu-{index:02d}",
        }

    def start(self, text: str, *words: str, only: tuple[int, ...] | None = None) -> None:
        for index, flatout in enumerate(self.flatouts):
            flatout.script(text)
            if only is None or index in only:
                own = ["--ranks", str(self.ranks[index]), "--nodes", "auto", *words, "train.py"]
                command = ["run", "--no-plan", "--no-trial", *own]
                started = flatout.start(*command, env=self.environ(index), stdin=subprocess.DEVNULL)
                self.processes.append(started)

    def ends(self) -> list[NodeEnd]:
        done = [process.communicate(timeout=LONG_S) for process in self.processes]
        return [
            NodeEnd(process.returncode, out.decode(), err.decode())
            for process, (out, err) in zip(self.processes, done, strict=True)
        ]

    def ready(self, name: str) -> bool:
        """All ranks have made this file in their node's folder."""
        made = [len(list(f.folder.glob(f"{name}-*"))) for f in self.flatouts]
        return made == list(self.ranks)

    def left(self) -> list[psutil.Process]:
        """What still runs of the ranks."""
        return under_orders(str(self.met.parent))
