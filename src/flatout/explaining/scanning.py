"""Find signatures in a stream of bytes in one pass, with bounded memory and in linear time.

One pattern for all messages runs over the stream. Only where it is found are the signatures tried
one by one, with the surrounding lines as their neighbourhood.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from flatout.explaining import conditions, lines
from flatout.explaining.patterns import PatternSet, any_of, compiled
from flatout.nouns.explained import Evidence
from flatout.nouns.signature import Signature

BEFORE = 48 << 10
"""Bytes before a message that can be near it."""
AFTER = 24 << 10
LINE = 4 << 10
"""Bytes of a longer line that are examined around a message."""
FURTHER = 600
"""Bytes after the lines of a message in which it may continue if it was wrapped."""
EVIDENCE = 400
"""Characters of evidence that are kept."""
ALIKE = 4
"""Messages of one rank differing only in figures that are examined; more are only counted."""
KEPT = 20_000
"""Most different messages that are remembered."""
TIME_LINES = 12
"""A line without a time takes that of an earlier line at most this many lines back."""
_DIGITS = b"0123456789"


@dataclass
class Hit:
    """One signature at one place."""

    signature: Signature
    evidence: Evidence
    order: int
    """Position among all bytes read, over all sources."""
    captured: dict[str, str]
    applies: tuple[bool | None, ...]
    """For each step of the cure whether its `if_text` was found, or None if it has none."""
    count: int = 0


class Book:
    """Signatures, compiled for searching."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        pairs = [(signature, pattern) for signature in signatures for pattern in signature.any]
        self.owners = tuple(signature for signature, _ in pairs)
        self._patterns = tuple(pattern for _, pattern in pairs)
        self.anywhere = any_of(self._patterns)

    @cached_property
    def message_patterns(self) -> PatternSet:
        """The message patterns, with indexes as in `owners`; made when first needed."""
        return PatternSet(self._patterns)


@dataclass
class Scanner:
    """Takes sources one after the other and keeps the first hit of each signature on each rank."""

    book: Book
    hits: dict[tuple[str, int | None, str | None], Hit] = field(default_factory=dict)
    bytes_read: int = 0
    _alike: dict[tuple[int | None, bytes], tuple[int, list[Hit]]] = field(default_factory=dict)

    def read(self, blocks: Iterable[bytes], source: str | None = None) -> None:
        """Scan one source. Memory: a block and the neighbourhood, for any length."""
        window = _Window(source, self.bytes_read)
        for block in blocks:
            window.add(lines.clean(block))
            self.bytes_read += len(block)
            self._scan(window, max(window.done, len(window.text) - AFTER))
            window.forget()
        self._scan(window, len(window.text))

    def _scan(self, window: _Window, limit: int) -> None:
        """Examine messages that begin before `limit`."""
        anywhere, text = self.book.anywhere, window.text
        while window.done < limit:
            match = anywhere.search(text, window.done)
            if match is None or match.start() >= limit:
                break
            message = window.message(match.start(), match.end())
            key = (message.rank, message.lines.translate(None, _DIGITS))
            times, earlier = self._alike.get(key, (0, []))
            if times >= ALIKE:
                for hit in earlier:
                    hit.count += 1
            else:
                numbers = self.book.message_patterns.search(message.text)
                candidates = (self._hit(window, message, number) for number in numbers)
                hits = list({id(hit): hit for hit in candidates if hit is not None}.values())
                for hit in hits:
                    hit.count += 1
                if len(self._alike) < KEPT:
                    both = {id(hit): hit for hit in (*earlier, *hits)}
                    self._alike[key] = (times + 1, list(both.values()))
            window.done = max(message.end, match.end(), window.done + 1)
        window.done = max(window.done, limit)

    def _hit(self, window: _Window, message: _Message, number: int) -> Hit | None:
        """The hit of one pattern's signature, made if it is the first; not yet counted."""
        signature = self.book.owners[number]
        match = compiled(self.book.message_patterns.patterns[number]).search(message.text)
        if match is None or match.start() > message.end - message.start:
            return None
        key = (signature.id, message.rank, window.source)
        if (earlier := self.hits.get(key)) is not None:
            return earlier
        near = window.near(message, signature.near)
        if any(compiled(pattern).search(near) for pattern in signature.none):
            return None
        matches = [compiled(pattern).search(near) for pattern in signature.all]
        if not all(matches):
            return None
        further = [compiled(pattern).search(near) for pattern in signature.captures]
        captured: dict[str, str] = {}  # groups of later patterns take precedence
        for one in (*further, *matches, match):
            groups: dict[bytes, bytes | None] = one.groupdict() if one is not None else {}
            for name, value in groups.items():
                if value:
                    words = value.decode("utf-8", "replace").split()
                    captured[name.decode()] = " ".join(words)[:200]
        if not all(conditions.CAPTURED[need](captured) for need in signature.needs):
            return None
        applies = tuple(
            (None if step.if_text is None else compiled(step.if_text).search(near) is not None)
            for step in signature.cure
        )
        evidence = window.evidence(message, match)
        order = window.begin + window.offset + message.start
        hit = self.hits[key] = Hit(signature, evidence, order, captured, applies)
        return hit


@dataclass(frozen=True)
class _Message:
    """A place of a window where something was found."""

    start: int
    end: int
    """End of the lines that contain it."""
    lines: bytes
    text: bytes
    """These lines and some that follow, in which the message may continue."""
    rank: int | None


class _Window:
    """The part of one source that is in memory now."""

    def __init__(self, source: str | None, begin: int) -> None:
        self.source = source
        self.begin = begin
        """Bytes of earlier sources."""
        self.rank = lines.rank_of_file(source) if source else None
        self.text = b""
        self.done = 0
        """Everything before this position has been examined."""
        self.offset = 0
        """Bytes of the source that were dropped."""
        self._lines = 0
        """Lines in the dropped bytes."""
        self._near: dict[tuple[int, int, int | None], bytes] = {}

    def add(self, block: bytes) -> None:
        self.text += block
        self._near.clear()

    def forget(self) -> None:
        """Drop what cannot be near any later message."""
        far = self.done - BEFORE
        if far <= 0:
            return
        self._lines += self.text.count(b"\n", 0, far)
        self.offset += far
        self.text = self.text[far:]
        self.done -= far
        self._near.clear()

    def message(self, start: int, end: int) -> _Message:
        """The lines that contain a place, or the part around it if they are very long."""
        first = self.text.rfind(b"\n", max(0, start - LINE), start) + 1
        last = self.text.find(b"\n", end, end + LINE)
        begin = first or max(0, start - LINE)
        stop = last if last >= 0 else min(len(self.text), end + LINE)
        rows = self.text[begin:stop]
        rank = lines.rank(rows.split(b"\n", 1)[0].decode("utf-8", "replace"))
        further = self.text[begin : stop + FURTHER]
        return _Message(begin, stop, rows, further, self.rank if rank is None else rank)

    def near(self, message: _Message, count: int) -> bytes:
        """`count` lines before and after a message, without prefixes and other ranks' lines."""
        key = (message.start, count, message.rank)
        if key not in self._near:
            before = self.text[max(0, message.start - BEFORE) : message.start]
            after = self.text[message.end : message.end + AFTER]
            rows = before.split(b"\n")[-count - 1 :], after.split(b"\n")[: count + 1]
            whole = b"\n".join(rows[0]) + message.lines + b"\n".join(rows[1])
            stripped = (
                lines.stripped(line)
                for line in (whole if count else message.lines)
                .decode("utf-8", "replace")
                .split("\n")
                if message.rank is None or lines.rank(line) in (None, message.rank)
            )
            self._near[key] = "\n".join(stripped).encode()
        return self._near[key]

    def evidence(self, message: _Message, match: Any) -> Evidence:
        """The lines in which a pattern was found, or the part around it if they are very long."""
        text = message.text
        begin = text.rfind(b"\n", 0, match.start()) + 1
        end = text.find(b"\n", match.end())
        rows = text[begin : end if end >= 0 else len(text)].decode("utf-8", "replace").split("\n")
        words = " ".join(" ".join(lines.stripped(row) for row in rows).split())
        if len(words) > EVIDENCE:
            part = text[max(begin, match.start() - EVIDENCE // 4) :][:EVIDENCE]
            words = " ".join(part.decode("utf-8", "replace").split())
        earlier = self.text[max(0, message.start - LINE) : message.start]
        before = earlier.decode("utf-8", "replace").split("\n")[-TIME_LINES:]
        times = map(lines.time_s, (rows[0], *reversed(before)))
        return Evidence(
            text=words,
            line=self._lines + self.text.count(b"\n", 0, message.start + match.start()) + 1,
            source=self.source,
            rank=message.rank,
            time_s=next((time for time in times if time is not None), None),
        )
