"""What flatout was given on its standard input, for each of the runs that it starts.

A run of a trial is not at the terminal: it gets no input from there. What a file or another
program gives is read once, and each run reads it from its start.
"""

from __future__ import annotations

import dataclasses
import os
import select
import stat
import sys
import time
from pathlib import Path

from flatout.running.command import Command

FILE = "stdin"
MOST_BYTES = 256 << 20
FIRST_S = 0.3
"""Waited for the first byte from a pipe: many are open and never give any."""
WHOLE_S = 30.0
"""Waited for its end."""
PIECE = 1 << 20


def given(command: Command, folder: Path) -> Command:
    """The command, with what standard input holds as the input of each of its runs.

    Without change where there is none: at a terminal, or where nothing comes.
    """
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and sys.platform != "win32")):
            return command
        data = _read(descriptor, is_pipe=stat.S_ISFIFO(mode))
        if not data:
            return command
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        path.write_bytes(data)
    except (AttributeError, OSError, ValueError):  # no standard input, or none that can be read
        return command
    return dataclasses.replace(command, input=path.absolute())


def _read(descriptor: int, is_pipe: bool) -> bytes:
    """All of it; nothing where it does not end, or is too much to keep."""
    pieces: list[bytes] = []
    size, ends_at = 0, time.monotonic() + FIRST_S
    while size <= MOST_BYTES:
        if is_pipe:
            left_s = ends_at - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                return b""
        piece = os.read(descriptor, PIECE)
        if not piece:
            return b"".join(pieces)
        if not pieces:
            ends_at = time.monotonic() + WHOLE_S
        pieces.append(piece)
        size += len(piece)
    return b""
