"""What forked processes tell the one that trains: a file of each, and a byte that all share."""

from __future__ import annotations

import mmap
import os
import sys

FORKS = sys.platform != "win32" and hasattr(os, "fork")


class ForkReports:
    """Made once, in the process that trains, before it forks."""

    def __init__(self, folder: str, name: str, state: int) -> None:
        """name: of the files, `<folder>/<name>-<pid>.json`; state: what the byte holds at first."""
        self._folder, self._name = folder, name
        self._memory = mmap.mmap(-1, 1) if FORKS else None
        self.state = state

    @property
    def state(self) -> int | None:
        """What the process that trains has written last; None: it cannot fork."""
        return None if self._memory is None else self._memory[0]

    @state.setter
    def state(self, state: int) -> None:
        if self._memory is not None:
            self._memory[0] = state

    def write(self, text: str) -> None:
        """In a forked process: its report, in place of an earlier one. Raises OSError."""
        path = self._path(os.getpid())
        descriptor = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:  # past `open`, which is watched
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
        os.replace(f"{path}.part", path)  # noqa: PTH105

    def read(self, pid: int) -> str | None:
        """The report of this process; None: there is none."""
        try:
            with open(self._path(pid), encoding="utf-8") as file:  # noqa: PTH123
                return file.read()
        except (OSError, ValueError):
            return None

    def _path(self, pid: int) -> str:
        return os.path.join(self._folder, f"{self._name}-{pid}.json")  # noqa: PTH118
