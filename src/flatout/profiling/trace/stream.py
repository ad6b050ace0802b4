"""The text of a trace file, piece by piece: unpacked in a thread, cut between events."""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from flatout.nouns.errors import UserError
from flatout.profiling.trace import decoding

PACKED = 1 << 17
PIECE = 1 << 18
"""Bytes at once: packed, and as text. The events of one piece fit into a core's cache."""
MOST_HELD = 1 << 26
"""Bytes without the end of an event after which a file is given up as damaged."""
LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
# In a string the quote after the brace would have a backslash before it.
BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"[^"\\]*"\s*:)')
MOST_TRIES = 10_000
NEXT_STEP = "record one with torch.profiler and export_chrome_trace()"


@dataclass
class Stream:
    """One file being read."""

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False
    _held: bytes = b""
    _ended: bool = False
    _stuck: int = 0

    def events(self) -> Generator[list[Any]]:
        """All events, some thousand at a time; see decoding for their classes.

        Raises UserError when the file cannot be read or is no trace.
        """
        with contextlib.closing(self._pieces()) as pieces:
            self._begin(pieces)
            for piece in pieces:
                self._held += piece
                if self._ended:
                    self._held = self._held[:MOST_HELD]
                elif found := self._some():
                    yield found
                elif len(self._held) > MOST_HELD:
                    self.truncated = True
                    return
            yield self._last()

    def _pieces(self) -> Generator[bytes]:
        """Pieces of text."""
        try:
            with self.path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                yield from _ahead(self._inflated(file)) if packed else _plain(file)
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        """Of gzip, which may be several members in a row, or break off."""
        unpack, data = zlib.decompressobj(31), file.read(PACKED)
        while data:
            try:
                piece = unpack.decompress(data, PIECE)
            except zlib.error:
                self.truncated = True
                return
            if piece:
                yield piece
            if unpack.eof:
                data = unpack.unused_data.lstrip(b"\0") or file.read(PACKED).lstrip(b"\0")
                unpack = zlib.decompressobj(31)
                self.truncated = False
            else:
                data = unpack.unconsumed_tail or file.read(PACKED)
                self.truncated = True
        if self.truncated:
            with contextlib.suppress(zlib.error):
                yield unpack.flush()  # what did not fit into the last piece

    def _begin(self, pieces: Iterator[bytes]) -> None:
        """Read up to the first event. A trace is an object with "traceEvents", or a bare list."""
        head = b""
        for piece in pieces:
            searched = max(0, len(head) - 64)
            head = (head + piece).removeprefix(b"\xef\xbb\xbf")
            first = head.lstrip()[:1]
            if first == b"[":
                self._held = head.lstrip()[1:]
                return
            if found := LIST.search(head, searched):
                self.metadata = _object(head[: found.start()] + b'"traceEvents":[]}')
                self.metadata.pop("traceEvents", None)
                self._held = head[found.end() :]
                return
            if first not in (b"{", b"") or len(head) > MOST_HELD:
                break
        raise UserError(f"{self.path} is no Kineto trace: it has no traceEvents", NEXT_STEP)

    def _some(self) -> list[Any]:
        """The events that are complete so far."""
        cut = _last_border(self._held)
        if cut is None:
            return []
        end, following = cut
        found = decoding.decode(b"[" + self._held[:end] + b"]")
        if found is None:
            return self._slowly()
        self._held = self._held[following:]
        return found

    def _slowly(self) -> list[Any]:
        """The same one by one: finds the end of the list, and reads what json alone reads."""
        if len(self._held) < 2 * self._stuck:
            return []
        text = self._held.decode("utf-8", "surrogateescape")
        found, at, why = decoding.slowly(text, 0)
        self._ended = why == "end"
        rest = text[at + self._ended :]
        self._held = rest.encode("utf-8", "surrogateescape")
        self._stuck = 0 if found else len(self._held)
        return found

    def _last(self) -> list[Any]:
        """What is left, and the facts that stand after the events."""
        found: list[Any] = []
        if not self._ended:
            self._stuck = 0
            found = self._slowly()
        if self._ended:
            after = self._held.lstrip().removeprefix(b",")
            self.metadata = {**_object(b"{" + after), **self.metadata}
        else:
            self.truncated = True
        return found


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece


def _ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same, the next one being made in a thread while this one is used."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, pieces, b"")
        while piece := following.result():
            following = pool.submit(next, pieces, b"")
            yield piece


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object; empty where it is none."""
    try:
        found = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_border(text: bytes) -> tuple[int, int] | None:
    """Where the last complete event ends, and where the one after it begins."""
    at = text.rfind(b"}")
    for _ in range(MOST_TRIES):
        if at < 0:
            return None
        if found := BORDER.match(text, at):
            return at + 1, found.end()
        at = text.rfind(b"}", 0, at)
    return None
