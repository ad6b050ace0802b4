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
"""Bytes read at once: packed, and as text. The events of one piece fit into a core's cache."""
MOST_BUFFERED = 1 << 26
"""A file with this many bytes without the end of an event is considered damaged."""
LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
# Inside a string, the quote after the brace would be escaped.
BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"[^"\\]*"\s*:)')
MOST_TRIES = 10_000
NEXT_STEP = "record one with torch.profiler and export_chrome_trace()"


@dataclass
class Stream:
    """A trace file that is being read."""

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False
    _buffer: bytes = b""
    _at_end: bool = False
    _stuck_bytes: int = 0

    def events(self) -> Generator[list[Any]]:
        """All events, some thousands at a time; see decoding for their classes.

        Raises UserError if the file cannot be read or is not a trace.
        """
        with contextlib.closing(self._pieces()) as pieces:
            self._begin(pieces)
            for piece in pieces:
                self._buffer += piece
                if self._at_end:
                    self._buffer = self._buffer[:MOST_BUFFERED]
                elif complete := self._complete_events():
                    yield complete
                elif len(self._buffer) > MOST_BUFFERED:
                    self.truncated = True
                    return
            # The remaining events, with the metadata that follows them.
            events: list[Any] = []
            if not self._at_end:
                self._stuck_bytes = 0
                events = self._decode_singly()
            if self._at_end:
                trailer = self._buffer.lstrip().removeprefix(b",")
                self.metadata = {**_object(b"{" + trailer), **self.metadata}
            else:
                self.truncated = True
            yield events

    def _pieces(self) -> Generator[bytes]:
        """The file's text, piece by piece."""
        try:
            with self.path.open("rb") as file:
                is_gzip = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                plain = iter(lambda: file.read(PIECE), b"")
                yield from _read_ahead(self._inflated(file)) if is_gzip else plain
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        """Text of a gzip file, which may have several members, or be truncated."""
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
                self._buffer = head.lstrip()[1:]
                return
            if match := LIST.search(head, searched):
                self.metadata = _object(head[: match.start()] + b'"traceEvents":[]}')
                self.metadata.pop("traceEvents", None)
                self._buffer = head[match.end() :]
                return
            if first not in (b"{", b"") or len(head) > MOST_BUFFERED:
                break
        raise UserError(f"{self.path} is not a Kineto trace: it has no traceEvents", NEXT_STEP)

    def _complete_events(self) -> list[Any]:
        """The events that are complete so far."""
        cut = _last_border(self._buffer)
        if cut is None:
            return []
        end, following = cut
        events = decoding.decode(b"[" + self._buffer[:end] + b"]")
        if events is None:
            return self._decode_singly()
        self._buffer = self._buffer[following:]
        return events

    def _decode_singly(self) -> list[Any]:
        """The same, one by one: finds the end of the list, and reads what only json accepts."""
        if len(self._buffer) < 2 * self._stuck_bytes:
            return []
        text = self._buffer.decode("utf-8", "surrogateescape")
        events, end, reason = decoding.decode_singly(text, 0)
        self._at_end = reason == "end"
        rest = text[end + self._at_end :]
        self._buffer = rest.encode("utf-8", "surrogateescape")
        self._stuck_bytes = 0 if events else len(self._buffer)
        return events


def _read_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces; the next one is made in a thread while one is used."""
    with ThreadPoolExecutor(1) as pool:
        next_piece = pool.submit(next, pieces, b"")
        while piece := next_piece.result():
            next_piece = pool.submit(next, pieces, b"")
            yield piece


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object; empty if the text is not one."""
    try:
        value = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _last_border(text: bytes) -> tuple[int, int] | None:
    """Where the last complete event ends, and where the one after it begins."""
    at = text.rfind(b"}")
    for _ in range(MOST_TRIES):
        if at < 0:
            return None
        if border := BORDER.match(text, at):
            return at + 1, border.end()
        at = text.rfind(b"}", 0, at)
    return None
