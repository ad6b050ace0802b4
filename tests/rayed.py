"""A cluster of Ray on this machine, for tests: two raylets, own ports and files, ended with all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

import flatout
from ports import free_port

READY_S = 120.0
SMALL = ("--num-cpus", "2", "--object-store-memory", "100000000", "--disable-usage-stats")


def program() -> str | None:
    """The ray that is installed here."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("ray") or shutil.which("ray", path=beside)


def missing() -> str:
    """Why there can be no cluster here; empty: there can."""
    if program() is None:
        return "ray is not installed: make cluster installs it"
    python = Path(program() or "").parent / "python"
    done = subprocess.run(
        [python, "-c", "import torch, aiohttp, ray"], capture_output=True, check=False
    )
    return "" if done.returncode == 0 else f"{python} has not all of ray[default] and torch"


def environment(folder: Path) -> dict[str, str]:
    """The variables for a cluster whose nodes run this flatout, by a command made in `folder`."""
    command = folder / "flatout"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flatout "$@"\n')
    command.chmod(0o755)
    # The cluster's own Python first: it runs the driver.
    path = f"{folder}:{Path(program() or '').parent}:{os.environ['PATH']}"
    source = str(Path(flatout.__file__).parents[1])
    return {**os.environ, "PATH": path, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


@contextmanager
def started(env: dict[str, str]) -> Iterator[RayCluster]:
    """The cluster while it runs."""
    # Paths of its sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="fr", dir="/tmp"))
    cluster = RayCluster(folder, env)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


class RayCluster:
    """Head and second node."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, {**env, "RAY_USAGE_STATS_ENABLED": "0"}
        self.port, self.dashboard = free_port(), free_port()
        self.address = f"http://127.0.0.1:{self.dashboard}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._run(
            "--head", "--port", str(self.port), "--dashboard-port", str(self.dashboard),
            "--include-dashboard", "true", "--temp-dir", str(self.folder / "t"), *SMALL,
        )  # fmt: skip
        self._wait(1)
        self._run("--address", f"127.0.0.1:{self.port}", *SMALL)
        self._wait(2)

    def stop(self) -> None:
        families = [found for process in self._processes for found in family(process.pid)]
        for process in self._processes:
            process.terminate()
        _, alive = psutil.wait_procs(families, 15)
        for found in alive:
            with suppress(psutil.Error):
                found.kill()
        for process in self._processes:
            process.wait()

    def nodes(self) -> int:
        """That are alive."""
        with suppress(OSError, KeyError, TypeError):
            answer = self.get("/api/v0/nodes")
            rows = answer["data"]["result"]["result"]
            return sum(row["state"] == "ALIVE" for row in rows)
        return 0

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=10) as answer:
            return json.loads(answer.read())

    def workers(self, name: str) -> list[psutil.Process]:
        """Processes of Ray that run this function."""
        found = [entry for process in self._processes for entry in family(process.pid)]
        named = []
        for entry in found:
            with suppress(psutil.Error):
                if any(name in word for word in entry.cmdline()[:1]):
                    named.append(entry)
        return named

    def _run(self, *words: str) -> None:
        command = [program() or "", "start", "--block", "--node-ip-address", "127.0.0.1", *words]
        with (self.folder / f"{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, nodes: int) -> None:
        deadline = time.monotonic() + READY_S
        while self.nodes() < nodes:
            logs = [path.read_text() for path in self.folder.glob("*.log")]
            assert time.monotonic() < deadline, "\n".join(logs)
            time.sleep(0.3)


def family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []
