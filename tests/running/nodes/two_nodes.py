"""Two nodes on this machine with the real agent: a process of `flatout run` for each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import flatout
import forked
from ports import free_port

SOURCES = str(Path(flatout.__file__).parents[1])


def environ(**more: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("FLATOUT_", "SLURM_"))}
    return {**own, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", **more}


def start(folder: Path, *words: str, fork: bool = True, **more: str) -> subprocess.Popen[str]:
    """`flatout run ...`.

    fork: the ranks are forks of a process that has imported torch; frameworks read what is there
    when it is imported.
    """
    python = ("--python", forked.python()) if fork else ()
    with (folder / f"out-{more.get('FLATOUT_NODE', '0')}").open("a+") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "flatout", "run", "--no-plan", *python, *words],
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
    folder: Path, *words: str, script: tuple[str, ...], fork: bool = True
) -> list[subprocess.Popen[str]]:
    """Both nodes, started with `words` for `script`."""
    leader = f"127.0.0.1:{free_port()}"
    own = {"FLATOUT_NODES": "2", "FLATOUT_LEADER": leader, "FLATOUT_JOB": "secret"}
    options = ("--no-trial", "--nodes", "auto", "--ranks", "1", *words, *script)
    return [
        start(
            folder,
            *options,
            fork=fork,
            FLATOUT_NODE=str(index),
            FLATOUT_NODE_NAME=f"gpu-{index:02d}",
            **own,
        )
        for index in (0, 1)
    ]


def ended(processes: list[subprocess.Popen[str]], codes: list[int]) -> list[str]:
    """What both wrote to stderr."""
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == codes, errors
    return errors
