"""Log files of a job that is still running: every line, as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from flatout.nouns.launched import JobState, LogLine

BLOCK = 64 * 1024
UNFINISHED_S = 1.0
"""A line without its end is given out after so long without more of it."""


def follow(paths: Callable[[], Mapping[Path, str]]) -> Iterator[LogLine | None]:
    """Lines of these files, source of each behind it; None: nothing new now. Never ends.

    paths: asked again at each look, for files that appear later.
    """
    tails: dict[Path, _LogTail] = {}
    while True:
        for path, source in paths().items():
            tail = tails.setdefault(path, _LogTail(path))
            for text in tail.lines():
                yield LogLine(source, text)
        yield None


def afresh(
    state: Callable[[], JobState], read: Callable[[JobState], Iterator[str | None]], wait_s: float
) -> Iterator[str | None]:
    """Lines of a log that every reading gives from its beginning: each line once.

    None: nothing new now. Ends once it was read after the job's end; wait_s: between two readings.
    """
    seen = 0
    while True:
        now, place = state(), 0
        for text in read(now):
            if text is None:
                yield None
                continue
            place += 1
            if place > seen:
                seen = place
                yield text
        if now.final:
            return
        yield from pause(wait_s)


def pause(seconds: float) -> Iterator[None]:
    """Nothing new for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield None


def end_of(path: Path, most_bytes: int = BLOCK) -> str:
    """The end of a file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - most_bytes))
            return file.read(most_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


class _LogTail:
    """One file, read from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._grown = time.monotonic()

    def lines(self) -> Iterator[str]:
        while block := self._read():
            self._grown = time.monotonic()
            *whole, self._rest = (self._rest + block).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip("\r")
        if self._rest and time.monotonic() - self._grown > UNFINISHED_S:
            line, self._rest = self._rest, b""
            yield line.decode("utf-8", "replace")

    def _read(self) -> bytes:
        try:
            # Opened anew each time: a network file system shows what is new only then.
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # written anew
                    self._offset = 0
                file.seek(self._offset)
                block = file.read(BLOCK)
        except OSError:  # not there yet
            return b""
        self._offset += len(block)
        return block
