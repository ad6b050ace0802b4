"""`flatout run` with the real agent, as one process or as one for each of two nodes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import flatout
from running.networks import Network

SOURCES = str(Path(flatout.__file__).parents[1])
SHORT = ("40", "0")


def environ(**more: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("FLATOUT_", "SLURM_"))}
    return {**own, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", **more}


def start(
    folder: Path, *words: str, before: list[str] | None = None, **more: str
) -> subprocess.Popen[str]:
    """`flatout run ... train.py`. before: words that begin the command."""
    output = (folder / f"out-{more.get('FLATOUT_NODE', '0')}").open("a+")
    with output:
        return subprocess.Popen(
            [
                *(before or []),
                *(sys.executable, "-m", "flatout", "run", "--no-plan", "--no-trial"),
                *words,
            ],
            cwd=folder,
            env=environ(**more),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )


def said(folder: Path) -> str:
    return (folder / "out-0").read_text()


def two_nodes(
    folder: Path,
    *words: str,
    script: tuple[str, ...] = SHORT,
    network: Network | None = None,
) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    host = network.addresses[0] if network is not None else "127.0.0.1"
    own = {"FLATOUT_NODES": "2", "FLATOUT_LEADER": f"{host}:{port}", "FLATOUT_JOB": "secret"}
    options = ("--nodes", "auto", "--ranks", "1", *words, "train.py", *script)
    started = []
    for index in (0, 1):
        before = network.inside(index) if network is not None else None
        names = {"FLATOUT_NODE": str(index), "FLATOUT_NODE_NAME": f"gpu-{index:02d}"}
        started.append(start(folder, *options, before=before, **names, **own))
    return started


def ended(processes: list[subprocess.Popen[str]], codes: list[int]) -> list[str]:
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == codes, errors
    return errors
