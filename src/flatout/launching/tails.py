"""Log files of a running job: every line as soon as it is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from flatout.nouns.launched import JobState, LogLine

BLOCK = 64 * 1024
UNFINISHED_S = 1.0
"""Seconds without more text after which an unfinished line is given out."""


def follow(paths: Callable[[], Mapping[Path, str]]) -> Iterator[LogLine | None]:
    """Lines of these files with their sources, or None if there is nothing new. Never ends.

    paths: path -> source; called at each look, for files that appear later.
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
    """Each line once of a log that every reading returns from its beginning.

    None means nothing new. Ends after a reading after the job's end. wait_s: between readings.
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
    """Yield None for this many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield None


def end_of(path: Path, most_bytes: int = BLOCK) -> str:
    """The end of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - most_bytes))
            return file.read(most_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


class _LogTail:
    """One file, read on from the end of the last look."""

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
            # Opened anew each time: only then does a network file system show new text.
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # rewritten
                    self._offset = 0
                file.seek(self._offset)
                block = file.read(BLOCK)
        except OSError:  # does not exist yet
            return b""
        self._offset += len(block)
        return block
