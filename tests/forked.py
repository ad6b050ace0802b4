"""Programs with or without flatout, each in a fork of one process that has imported torch already.

Importing torch and what its optimizers import is all that a small program takes time for. The agent
begins there as in a program that imported torch before it: that it is loaded first, and waits for
the import, is for tests with a process of their own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout_agent import wire

PARENT = """# of tests/forked.py
import gc, json, os, runpy, sys
import torch, torch._dynamo
gc.freeze()  # or each fork visits, and copies, all of torch when it ends

def serve():
    for line in sys.stdin.buffer.raw:
        order = json.loads(line)
        if os.fork() == 0:
            return order
        _, status = os.wait()
        print(os.waitstatus_to_exitcode(status), flush=True)

order = serve()
if order is not None:
    torch.seed()  # each process draws its own numbers, where the program chooses no seed
    os.chdir(order["folder"])
    os.environ.update(order["variables"])
    for number, path in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.orig_argv[1:] = sys.argv[:] = order["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    if order["agent"]:
        from flatout_agent import start
        start.start()
    if sys.argv[0] == "-m":
        sys.path[0] = os.getcwd()
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Done:
    """How one program ended; a traceback in `stderr` has the lines of `runpy` in it."""

    returncode: int
    stdout: str
    stderr: str


def bare(argv: list[str], folder: Path, results: Path) -> Done:
    """The script `argv`, or `-m` and a module's name, in `folder`; its output is kept in `results`,
    outside of it."""
    return _run(argv, folder, results, {}, agent=False)


def with_variables(
    argv: list[str], folder: Path, results: Path, variables: Mapping[str, str]
) -> Done:
    """As `bare`, with these variables besides; with the agent where they name its orders."""
    return _run(argv, folder, results, variables, agent=wire.ORDERS_ENV in variables)


def _run(
    argv: list[str], folder: Path, results: Path, variables: Mapping[str, str], agent: bool
) -> Done:
    out, err = results / "forked.out", results / "forked.err"
    if not hasattr(os, "fork"):
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=240,
        )
        return Done(done.returncode, done.stdout, done.stderr)
    parent = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    order = {"argv": argv, "folder": str(folder), "out": str(out), "err": str(err)}
    order = {**order, "variables": dict(variables), "agent": agent}
    parent.stdin.write(json.dumps(order) + "\n")
    parent.stdin.flush()
    code = int(parent.stdout.readline())
    return Done(code, out.read_text(), err.read_text())


@functools.cache
def _parent() -> subprocess.Popen[str]:
    """Ends with the tests: its input does."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(parent.communicate)
    return parent
