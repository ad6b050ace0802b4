"""What a crashed program said last: its exceptions, the end of its stderr, the signal it died of.

The program keeps its own streams. A stderr that goes to a file is read back; a terminal or a pipe
cannot be, so there only the agents know the program's Python exceptions.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress

from flatout.running.one.records import Processes
from flatout_agent import wire

STDERR = 2
TAIL_BYTES = 256 << 10
F_GETPATH = 50
"""On macOS, asks for the path of an open file."""
BY_USER = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGBREAK")
"""Whoever ended the program by one of these knows why."""
AS_A_SHELL_SAYS = {
    "SIGKILL": "Killed",
    "SIGSEGV": "Segmentation fault (core dumped)",
    "SIGBUS": "Bus error (core dumped)",
    "SIGABRT": "Aborted (core dumped)",
    "SIGILL": "Illegal instruction (core dumped)",
    "SIGFPE": "Floating point exception (core dumped)",
}
OF_WINDOWS = {0xC0000005: "SIGSEGV", 0xC000001D: "SIGILL", 0xC0000409: "SIGABRT"}
"""The exit codes for these on Windows."""


class StderrFile:
    """What is written to our stderr from now on, if that is a file."""

    def __init__(self) -> None:
        self._path = _path_of(STDERR)
        self._begin = 0
        if self._path is not None:
            with suppress(OSError):
                self._begin = os.fstat(STDERR).st_size

    def tail(self) -> bytes:
        """Its last bytes, empty if it is no file or cannot be read."""
        if self._path is None:
            return b""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._begin if self._begin <= end else 0, end - TAIL_BYTES))
                return file.read(TAIL_BYTES)
        except OSError:
            return b""


def collected(
    records: Iterable[tuple[int, wire.Record]], returncode: int, stderr: bytes
) -> list[bytes]:
    """Texts for `explain`, the likeliest to hold the root cause first; empty if nothing is known.

    records: those of the run; returncode: -N if signal N ended the program.
    """
    name = _signal_name(returncode)
    if returncode == 0 or name in BY_USER:
        return []
    processes = Processes(records).all
    several = len({process.rank for process in processes}) > 1
    texts = []
    for process in processes:
        head = f"[rank{process.rank}]: " if several else ""
        for crash in process.crashes:
            text = "".join(f"{head}{line}\n" for line in crash.splitlines())
            texts.append(text.encode("utf-8", "replace"))
    texts.append(stderr)
    if name in AS_A_SHELL_SAYS:
        texts.append(AS_A_SHELL_SAYS[name].encode() + b"\n")
    return [text for text in texts if text.strip()]


def _signal_name(returncode: int) -> str:
    if (code := returncode % 2**32) in OF_WINDOWS:
        return OF_WINDOWS[code]
    number = -returncode if returncode < 0 else returncode - 128 if returncode > 128 else 0
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _path_of(descriptor: int) -> str | None:
    """The path by which an open file can be read again, or None if it is no file or has none."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        if sys.platform == "darwin":
            import fcntl

            raw = fcntl.fcntl(descriptor, F_GETPATH, b"\0" * 1024)
            return os.fsdecode(raw.rstrip(b"\0"))
        if sys.platform == "win32":
            return None
        return f"/proc/self/fd/{descriptor}"
    except OSError:
        return None
