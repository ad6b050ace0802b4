"""Ends the programs that flatout started when flatout itself dies without being able to.

A small process in a session of its own reads from a pipe which programs are running. The pipe
closes when flatout ends, for whatever reason (SIGKILL, out of memory, a notebook's kernel is
stopped): what is registered then is ended with all that it started. This needs nothing but pipes,
so it is the same on Linux, macOS and Windows.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import psutil

from flatout.running.one import tree
from flatout_agent import wire

GRACE_S = 5.0


class Watchdog:
    """flatout's end of the pipe. If the other end cannot be started, nothing is watched."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._watched: set[int] = set()

    def watch(self, pid: int, marker: str, session: bool) -> None:
        """End this program and every process whose orders are `marker`, if flatout dies."""
        if self._process is None:
            environment = {k: v for k, v in os.environ.items() if k != wire.ORDERS_ENV}
            detached: dict[str, Any] = {"start_new_session": True}
            if sys.platform == "win32":
                flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
                detached = {"creationflags": flags}
            with suppress(OSError):
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "flatout.running.one.watchdog"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                    **detached,
                )
                atexit.register(self._close)
        self._watched.add(pid)
        self._tell({"watch": pid, "marker": marker, "session": session})

    def forget(self, pid: int) -> None:
        """The program has ended."""
        self._watched.discard(pid)
        self._tell({"forget": pid})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _close(self) -> None:
        """End it with flatout, without waiting for its start-up."""
        if self._process is None:
            return
        if not self._watched:
            self._process.kill()
        with suppress(OSError):
            self._process.communicate()


WATCHDOG = Watchdog()
"""One for all of flatout; it starts with the first program."""


def main() -> None:
    """The watchdog's own process: read until the pipe closes, then end what is still registered."""
    watched: dict[int, tuple[psutil.Process | None, str, bool]] = {}
    for line in sys.stdin:
        message = json.loads(line)
        if "forget" in message:
            watched.pop(message["forget"], None)
        else:
            pid = message["watch"]
            watched[pid] = (tree.found(pid), message["marker"], message["session"])
    for process, marker, session in watched.values():
        if process is not None:
            tree.end(partial(tree.family, process, session), GRACE_S)
        tree.end(partial(tree.marked, wire.ORDERS_ENV, marker), GRACE_S)


if __name__ == "__main__":
    main()
