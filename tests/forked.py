"""Programs with or without flatout, each in a fork of one process that has imported torch already.

The agent begins there as in a program that imported torch before it: that it is loaded first, and
waits for the import, is for tests with a process of their own. See `preloaded`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

PRELOADED = Path(__file__).with_name("preloaded.py")
POSSIBLE = hasattr(os, "fork")


@dataclass
class Done:
    """How one program ended; a traceback in `stderr` has a line of `preloaded` in it."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class ProgramOrder:
    """What `preloaded` is asked to run."""

    argv: list[str]
    """A script and its arguments, or `-m` and a module's name."""
    folder: str
    variables: dict[str, str]
    """The whole environment."""


class ForkedProcess:
    """A program that runs, used as one of `subprocess.Popen`."""

    def __init__(self, order: ProgramOrder, out: IO[bytes], err: IO[bytes]) -> None:
        self._out, self._err = out, err
        self.returncode: int | None = None
        self._talk = socket.socket(socket.AF_UNIX)
        self._talk.connect(_parent()[0])
        with open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(self._talk, [b"!"], files)
        self._talk.sendall(json.dumps(asdict(order)).encode() + b"\n")
        self._answers = self._talk.makefile("rb")
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._talk], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(PRELOADED.name, timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._talk.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All of its output and errors, after its end. Raises TimeoutExpired."""
        self.wait(timeout)
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return texts[0], texts[1]

    def kill(self) -> None:
        """End it; its processes, if it has some, go on."""
        for resource in (self._answers, self._talk, self._out, self._err):
            resource.close()
        self.returncode = -9 if self.returncode is None else self.returncode


Started = ForkedProcess | subprocess.Popen[str]


def start(argv: list[str], folder: Path, variables: Mapping[str, str]) -> Started:
    """Start the script `argv`, or `-m` and a module's name; variables: the whole environment.

    Where there are no forks it is a process of its own.
    """
    return _started(argv, folder, variables, tempfile.TemporaryFile(), tempfile.TemporaryFile())


def start_own(argv: list[str], folder: Path, variables: Mapping[str, str]) -> Started:
    """As `start`, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, *argv],
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _started(
    argv: list[str], folder: Path, variables: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> Started:
    if not POSSIBLE:
        return start_own(argv, folder, variables)
    order = ProgramOrder(argv, str(folder), dict(variables))
    return ForkedProcess(order, out, err)


def bare(argv: list[str], folder: Path, results: Path) -> Done:
    """The script `argv`, or `-m` and a module's name, in `folder`; its output is kept in `results`,
    outside of it."""
    return with_variables(argv, folder, results, {})


def with_variables(
    argv: list[str], folder: Path, results: Path, variables: Mapping[str, str]
) -> Done:
    """As `bare`, with these variables besides; with the agent where they name it and its orders."""
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with (results / "forked.out").open("w+b") as out, (results / "forked.err").open("w+b") as err:
        started = _started(argv, folder, whole, out, err)
        texts = started.communicate(timeout=240)
    assert started.returncode is not None
    return Done(started.returncode, *texts)


@functools.cache
def python() -> str:
    """An interpreter for `--python`: scripts and modules run in a fork, all else as ever."""
    if not POSSIBLE:
        return sys.executable
    path, _ = _parent()
    interpreter = Path(path).with_name("python3")
    interpreter.write_text(
        f"#!{sys.executable} -IS\n"
        "import sys\n"
        f"sys.path.insert(0, {str(PRELOADED.parent)!r})\n"
        "import forked_python\n"
        f"forked_python.run({sys.executable!r}, {path!r})\n"
    )
    interpreter.chmod(0o755)
    return str(interpreter)


@functools.cache
def _parent() -> tuple[str, subprocess.Popen[str]]:
    """The process that forks, and its socket. It ends with the tests: its input does."""
    path = str(Path(tempfile.mkdtemp(prefix="flatout-"), "preloaded"))
    parent = subprocess.Popen(
        [sys.executable, str(PRELOADED), path],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(shutil.rmtree, Path(path).parent, ignore_errors=True)
    atexit.register(parent.communicate)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    return path, parent
