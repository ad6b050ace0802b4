"""Two nodes on this machine with the real agent: a process of `flatout run` for each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import flatout
import forked
from ports import free_port
from running.nodes.networks import Network

SOURCES = str(Path(flatout.__file__).parents[1])
QUICK = """
import functools
from flatout.running.ranks import started
started.RankLimits = functools.partial(started.RankLimits, still_s=4.0, look_s=0.5)
from flatout.__main__ import main
main()
"""
"""`flatout` with limits that a test can wait for."""


def environ(**more: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("FLATOUT_", "SLURM_"))}
    return {**own, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", **more}


def start(
    folder: Path,
    *words: str,
    before: list[str] | None = None,
    quick: bool = False,
    fork: bool = True,
    **more: str,
) -> subprocess.Popen[str]:
    """`flatout run ...`.

    before: words that begin the command: a fork would know nothing of them; quick: with short
    limits; fork: the ranks are forks of a process that has imported torch.
    """
    program = ("-c", QUICK) if quick else ("-m", "flatout")
    python = ("--python", forked.python()) if fork and not before else ()
    output = (folder / f"out-{more.get('FLATOUT_NODE', '0')}").open("a+")
    with output:
        return subprocess.Popen(
            [*(before or []), sys.executable, *program, "run", "--no-plan", *python, *words],
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
    script: tuple[str, ...],
    network: Network | None = None,
    trial: bool = False,
    quick: bool = False,
    fork: bool = True,
    **more: str,
) -> list[subprocess.Popen[str]]:
    """Both nodes, started with `words` for `script`. more: variables of both."""
    host = network.addresses[0] if network is not None else "127.0.0.1"
    own = {"FLATOUT_NODES": "2", "FLATOUT_LEADER": f"{host}:{free_port()}", "FLATOUT_JOB": "secret"}
    untried = () if trial else ("--no-trial",)
    options = (*untried, "--nodes", "auto", "--ranks", "1", *words, *script)
    started = []
    for index in (0, 1):
        before = network.inside(index) if network is not None else None
        names = {"FLATOUT_NODE": str(index), "FLATOUT_NODE_NAME": f"gpu-{index:02d}"}
        variables = {**names, **own, **more}
        started.append(start(folder, *options, before=before, quick=quick, fork=fork, **variables))
    return started


def ended(processes: list[subprocess.Popen[str]], codes: list[int]) -> list[str]:
    """What both wrote to stderr."""
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == codes, errors
    return errors
