"""What flatout was given on its standard input, for each run that it starts.

A run of a trial gets no input from a terminal. Input from a file or another program is read once,
and each run reads it from its start.
"""

from __future__ import annotations

import dataclasses
import os
import select
import stat
import sys
import time
from pathlib import Path

from flatout.running.one.command import Command

FILE = "stdin"
MOST_BYTES = 256 << 20
FIRST_S = 0.3
"""How long to wait for the first byte from a pipe: many are open and never give any."""
WHOLE_S = 30.0
"""How long to wait for its end."""
PIECE = 1 << 20


def given(command: Command, folder: Path) -> Command:
    """The command, with the content of standard input as the input of each of its runs.

    It is unchanged if there is no input: at a terminal, or if nothing comes.
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
    except (AttributeError, OSError, ValueError):  # there is no standard input that can be read
        return command
    return dataclasses.replace(command, input=path.absolute())


def _read(descriptor: int, is_pipe: bool) -> bytes:
    """All of the input, or nothing if it does not end or is too much to keep."""
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
