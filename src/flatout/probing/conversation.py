"""A program in the user's interpreter, read answer by answer and always ended."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import psutil

from flatout_programs.tell import MARK

OWN = "FLATOUT_"
POLL_S = 0.05
LAST_WORDS_S = 1.0
"""How long to wait for lines left in the pipe by a program that ended."""

_left_behind: list[subprocess.Popen[bytes]] = []
"""Programs that survived a kill, stuck in a driver. Waiting for them could take forever."""


def program(name: str) -> Path:
    """The file of one of our programs: facts, selftest, packages, ceilings."""
    spec = importlib.util.find_spec("flatout_programs")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("flatout_programs is not installed beside flatout")
    return Path(spec.submodule_search_locations[0], f"{name}.py")


def environment(base: Mapping[str, str], scratch: str | None = None) -> dict[str, str]:
    """The user's environment without flatout's variables; programs write no files beside the code.

    scratch: the folder for compilers' caches.
    """
    variables = {name: value for name, value in base.items() if not name.startswith(OWN)}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    if scratch is not None:
        caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
        variables.update({name: str(Path(scratch, name.lower())) for name in caches})
        variables.update(MIOPEN_USER_DB_PATH=scratch, MIOPEN_CUSTOM_CACHE_DIR=scratch)
        variables["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool for one small kernel
    return variables


def output(command: Sequence[str], env: Mapping[str, str], limit_s: float) -> str | None:
    """All output of the program, or None if it cannot be started or takes longer."""
    deadline = time.monotonic() + limit_s
    try:
        with Conversation(command, env) as talk:
            lines = list(iter(lambda: talk.line(deadline), None))
            return None if talk.running else "".join(lines)
    except OSError:
        return None


def answer(line: str) -> dict[str, Any]:
    """The content of a line printed by one of our programs; empty for any other line.

    NaN and infinities are read as None.
    """
    _, mark, text = line.partition(MARK)
    try:
        content = (
            json.loads(text, parse_constant=lambda name: None, parse_float=_number) if mark else {}
        )
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


class Conversation:
    """A running program. Use it in a `with` statement, whose end ends the program's whole tree.

    Raises OSError if the program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], takes_orders: bool = False
    ) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: deque[str] = deque(maxlen=50)
        self._over = False
        self._process = subprocess.Popen(
            list(command),
            env=env,
            stdin=subprocess.PIPE if takes_orders else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._readers = [
            threading.Thread(target=target, args=(stream,), daemon=True)
            for target, stream in (
                (self._read_lines, self._process.stdout),
                (self._read_errors, self._process.stderr),
            )
        ]
        for reader in self._readers:
            reader.start()
        _running.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, order: dict[str, Any]) -> None:
        """Send one order as a line; if the program has ended, `answer` returns None."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def line(self, deadline: float) -> str | None:
        """The next line, or None after the program's end or `deadline` (time.monotonic)."""
        ended_at = None
        while not self._over:
            try:
                wait_s = min(POLL_S, max(0.0, deadline - time.monotonic()))
                line = self._lines.get(timeout=wait_s)
            except queue.Empty:
                now = time.monotonic()
                if self.running:
                    ended_at = None
                elif ended_at is None:
                    ended_at = now
                # Its children may hold the pipe open forever.
                if now >= deadline or (ended_at is not None and now - ended_at > LAST_WORDS_S):
                    return None
                continue
            self._over = line is None
            if self._over:  # its output ends just before it does
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(LAST_WORDS_S)
            return line
        return None

    def answer(self, deadline: float) -> dict[str, Any] | None:
        """The content of the next line (see the function `answer`), or None as in `line`."""
        line = self.line(deadline)
        return None if line is None else answer(line)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def how_it_ended(self) -> str:
        """How it ended, in words, with the last line of its error stream."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self._readers[1].join(LAST_WORDS_S)
        last = next((line for line in reversed(self._errors) if line.strip()), "").strip()
        code = self._process.returncode
        if code is not None and code < 0:
            cause = f"signal {-code}"
            with contextlib.suppress(ValueError):
                cause = f"{cause} ({signal.Signals(-code).name})"
            return f"ended by {cause}{f': {last}' if last else ''}"
        return last or f"ended with exit code {code}"

    def end(self) -> None:
        """Kill it and its children, without waiting for any that cannot be killed."""
        _running.discard(self)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error, OSError):
            children = psutil.Process(self._process.pid).children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.Error, OSError):
                child.kill()
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            _left_behind.append(self._process)
            return
        for reader in self._readers:
            reader.join(1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _read_lines(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.put(line.decode(errors="replace"))
        self._lines.put(None)

    def _read_errors(self, stream: IO[bytes]) -> None:
        with stream:
            self._errors.extend(line.decode(errors="replace") for line in stream)


_running: weakref.WeakSet[Conversation] = weakref.WeakSet()


@atexit.register
def _end_running() -> None:
    """End conversations that a keyboard interrupt or an error left open."""
    for talk in list(_running):
        talk.end()


def _number(text: str) -> float | None:
    return number if math.isfinite(number := float(text)) else None
