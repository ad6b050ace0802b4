"""Reports of forked processes to the one that trains: a file from each, and one shared byte."""

from __future__ import annotations

import mmap
import os
import sys

FORKS = sys.platform != "win32" and hasattr(os, "fork")


class ForkReports:
    """The reports; made once, in the process that trains, before it forks."""

    def __init__(self, folder: str, name: str, state: int) -> None:
        """name: the files are `<folder>/<name>-<pid>.json`. state: the initial value of
        the byte.
        """
        self._folder, self._name = folder, name
        self._memory = mmap.mmap(-1, 1) if FORKS else None
        self.state = state

    @property
    def state(self) -> int | None:
        """The last byte that the process that trains has written, or None if it cannot fork."""
        return None if self._memory is None else self._memory[0]

    @state.setter
    def state(self, state: int) -> None:
        if self._memory is not None:
            self._memory[0] = state

    def write(self, text: str) -> None:
        """Write a forked process's report, replacing an earlier one. Raises OSError."""
        path = self._path(os.getpid())
        descriptor = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:  # avoids `open`, which is watched
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
        os.replace(f"{path}.part", path)  # noqa: PTH105

    def read(self, pid: int) -> str | None:
        """The report of this process, or None if there is none."""
        try:
            with open(self._path(pid), encoding="utf-8") as file:  # noqa: PTH123
                return file.read()
        except (OSError, ValueError):
            return None

    def _path(self, pid: int) -> str:
        return os.path.join(self._folder, f"{self._name}-{pid}.json")  # noqa: PTH118
