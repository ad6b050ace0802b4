"""One connection to each machine, shared by all ssh calls of this process.

A launch makes a dozen calls to each machine. A handshake takes some tenths of a second, and more
through a jump host. ssh shares an open connection through a socket. The open one runs `cat` there:
its input ends with this process, however that ends, and so does the connection. If sharing is not
possible (Windows, a server without spare sessions), each call connects by itself.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LIMIT_S = 20.0
CLOSE_S = 2.0
MOST_CHARACTERS = 80
"""Longest path of a socket, to which ssh adds 17; systems allow at least 103."""


class _Connection:
    """The connection to one machine."""

    def __init__(self, socket: Path) -> None:
        self.lock = threading.Lock()
        self.socket = socket
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_open(self) -> bool:
        return self.process is not None and self.process.poll() is None and self.socket.exists()

    def open(self, call: Sequence[str], machine: str) -> str:
        """Connect; returns ssh's message if it failed, else ""."""
        own = ["-o", "ControlMaster=yes", "-o", f"ControlPath={self.socket}"]
        said = self.socket.with_suffix(".said")
        with said.open("wb") as errors:
            self.process = process = subprocess.Popen(
                [*call, *own, "--", machine, "cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for whoever follows
            )
        deadline = time.monotonic() + LIMIT_S
        while not self.socket.exists() and time.monotonic() < deadline:
            if process.poll() is not None:
                return said.read_text(encoding="utf-8", errors="replace")
            time.sleep(0.01)
        return ""

    def close(self) -> None:
        process = self.process
        if process is None:
            return
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_S)


class SharedConnections:
    """The connections of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, ...], _Connection] = {}
        self._folder: Path | None = None

    def options(self, call: Sequence[str], machine: str) -> list[str]:
        """Options that let a call use the connection; empty if there is none.

        call: its first words.
        """
        found = self._connections.get((*call, machine))
        if found is None or not found.is_open:
            return []
        return ["-o", "ControlMaster=no", "-o", f"ControlPath={found.socket}"]

    def open(self, call: Sequence[str], machine: str) -> str:
        """Connect if not yet tried; returns ssh's message if it failed, else ""."""
        with self._lock:
            if self._folder is None:
                self._folder = _new_folder()
                atexit.register(self.close)
            key = (*call, machine)
            new = _Connection(self._folder / str(len(self._connections)))
            found = self._connections.setdefault(key, new)
        with found.lock:
            if found.process is not None or len(str(found.socket)) > MOST_CHARACTERS:
                return ""
            return found.open(call, machine)

    def close(self) -> None:
        """End all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _new_folder() -> Path:
    """A new folder with a short path, accessible only to this user."""
    short = "/tmp" if sys.platform != "win32" and Path("/tmp").is_dir() else None
    return Path(tempfile.mkdtemp(prefix="flatout-", dir=short))
