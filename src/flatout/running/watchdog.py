"""Ends the programs that flatout started when flatout itself dies without being able to.

A small process of its own, in its own session. It reads from a pipe which programs are running.
The pipe closes when flatout ends, for whatever reason (SIGKILL, out of memory, power button of a
notebook kernel): what is registered then is ended with all that it started. This needs nothing of
the system but pipes, so it is the same on Linux, macOS and Windows.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

import psutil

from flatout.running import tree
from flatout_agent import wire

GRACE_S = 5.0


class Watchdog:
    """flatout's end of the pipe. If the other end cannot be started, nothing is watched."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._watched: set[int] = set()

    def watch(self, pid: int, marker: str, session: bool) -> None:
        """End this program, and all that carries `marker` as its orders, if flatout dies."""
        if self._process is None:
            self._start()
        self._watched.add(pid)
        self._tell({"watch": pid, "marker": marker, "session": session})

    def forget(self, pid: int) -> None:
        """The program has ended, or has been ended."""
        self._watched.discard(pid)
        self._tell({"forget": pid})

    def _start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != wire.ORDERS_ENV}
        detached: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
            detached = {"creationflags": flags}
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "flatout.running.watchdog"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
                **detached,
            )
            atexit.register(self._close)

    def _tell(self, message: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _close(self) -> None:
        """At the end of flatout: do not leave it running, nor wait for its start-up."""
        if self._process is None:
            return
        if not self._watched:
            self._process.kill()
        with suppress(OSError):
            self._process.communicate()


WATCHDOG = Watchdog()
"""One for the whole process; it starts with the first program."""


def main() -> None:
    """The process itself: read until the pipe closes, then end what is still registered."""
    watched: dict[int, tuple[psutil.Process | None, str, bool]] = {}
    for line in sys.stdin:
        message = json.loads(line)
        if "forget" in message:
            watched.pop(message["forget"], None)
        else:
            pid = message["watch"]
            watched[pid] = (_process(pid), message["marker"], message["session"])
    for process, marker, session in watched.values():
        _end(process, marker, session)


def _process(pid: int) -> psutil.Process | None:
    """The process now, so that a later one with the same number is not taken for it."""
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _end(process: psutil.Process | None, marker: str, session: bool) -> None:
    if process is not None:
        tree.end(lambda: tree.family(process, session), GRACE_S)
    tree.end(lambda: tree.marked(wire.ORDERS_ENV, marker), GRACE_S)


if __name__ == "__main__":
    main()
