"""The form of a JPEG file, as far as it shows that decoding it later raises no error.

A program may open a file within `try` because some files are broken. Only of a file that is known
to decode may the decoding wait until its size is known.
"""

from __future__ import annotations

import functools

FRAME, HUFFMAN, QUANTIZERS, SCAN, INTERVAL = (0xC0, 0xC1), 0xC4, 0xDB, 0xDA, 0xDD
HARMLESS = {0xFE, *range(0xE0, 0xF0)}
"""Markers of comments and of what programs add."""
WITHIN = {bytes((mark,)) for mark in (0, *range(0xD0, 0xD8))}
"""What follows on 255 in the pixels' data: a zero, for 255 itself, or the mark of a new start."""
SAMPLINGS = {0x11, 0x12, 0x21, 0x22, 0x41}
"""Pixels across and down of the first colour for one of the others."""


def is_plain(data: bytes) -> bool:
    """Whether these are the bytes of one whole baseline JPEG image of three colours.

    It has all of its tables, and in the pixels' data there is no marker but those to start again
    and the end: decoding raises errors for missing parts and for strange markers, whereas wrong
    numbers only give a wrong image.
    """
    place, frame = 2, b""
    tables: set[int] = set()
    while data[place : place + 1] == b"\xff":
        marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        part = data[place + 4 : place + 2 + length]
        place += 2 + length
        if marker == SCAN:
            fits = _fits(frame, part, tables)
            return fits and _runs_to_the_end(data, place)
        if marker in FRAME and not frame:
            frame = part
        elif marker in (HUFFMAN, QUANTIZERS):
            segment_tables = (_huffman if marker == HUFFMAN else _quantizers)(part)
            if not segment_tables:
                return False
            tables |= segment_tables
        elif marker not in HARMLESS and (marker, length) != (INTERVAL, 4):
            return False
    return False


@functools.lru_cache(maxsize=64)
def _huffman(part: bytes) -> frozenset[int]:
    """The tables in this segment: 0x0n for the constant part, 0x1n for the others; none: broken."""
    place, tables = 0, set()
    while place < len(part):
        kind, counts = part[place], part[place + 1 : place + 17]
        symbols = part[place + 17 : place + 17 + sum(counts)]
        place += 17 + len(symbols)
        if len(counts) < 16 or len(symbols) != sum(counts) or not _are_codes(counts):
            return frozenset()
        if kind < 0x10 and max(symbols, default=0) > 15:
            return frozenset()
        tables.add(kind)
    return frozenset(tables)


def _are_codes(counts: bytes) -> bool:
    """Whether so many codes of each length can be told from each other, none of all ones."""
    code = 0
    for length, count in enumerate(counts, 1):
        code = 2 * code + count
        if count and code >= 1 << length:
            return False
    return True


def _quantizers(part: bytes) -> frozenset[int]:
    """The tables in this segment, as 0x20 + n; none: broken."""
    place, tables = 0, set()
    while place < len(part):
        wide, name = part[place] >> 4, part[place] & 15
        place += 1 + 64 * (1 + wide)
        if wide > 1 or place > len(part):
            return frozenset()
        tables.add(0x20 + name)
    return frozenset(tables)


def _fits(frame: bytes, scan: bytes, tables: set[int]) -> bool:
    """Whether frame and scan are of the same three colours, and all their tables are there."""
    if len(frame) != 15 or len(scan) != 10 or frame[0] != 8 or frame[5] != 3 or scan[0] != 3:
        return False
    names, samplings, quantizers = frame[6::3], frame[7::3], frame[8::3]
    if scan[1:7:2] != names or len(set(names)) < 3 or scan[7:] != b"\x00\x3f\x00":
        return False
    needed = {0x20 + name for name in quantizers}
    for chosen in scan[2:8:2]:
        needed |= {chosen >> 4, 0x10 + (chosen & 15)}
    fair = samplings[0] in SAMPLINGS and samplings[1:] == b"\x11\x11"
    return fair and needed <= tables


def _runs_to_the_end(data: bytes, begin: int) -> bool:
    _, *pieces = data[begin:].split(b"\xff")
    *inner, last = pieces or [b""]
    return last == b"\xd9" and {piece[:1] for piece in inner} <= WITHIN
