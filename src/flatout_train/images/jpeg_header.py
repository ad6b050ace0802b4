"""The header of a JPEG file: size, components, orientation, and where its pixels begin."""

from __future__ import annotations

from dataclasses import dataclass

_FRAMES = frozenset(
    (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
)
"""Markers of a frame header (SOF0 to SOF15); C4, C8 and CC mean other things."""
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))
"""Markers without a length: TEM, restarts, start of image."""
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Header:
    """Width and height in pixels as stored, before `orientation` (EXIF, 1 to 8) turns them."""

    width: int
    height: int
    components: int
    bits: int
    orientation: int
    complete: bool
    """The file has an end-of-image marker: it is not truncated."""

    @property
    def plain(self) -> bool:
        """Grey or colour in 8 bits, upright: read in the same way by every decoder."""
        return self.components in (1, 3) and self.bits == 8 and self.orientation == 1


def read(data: bytes) -> Header | None:
    """The header, or None if `data` is not a JPEG file, or ends before its size."""
    if data[:2] != b"\xff\xd8":
        return None
    frame: tuple[int, int, int, int] | None = None
    orientation, place = 1, 2
    while (segment := _marker(data, place)) is not None:
        marker, place = segment
        if marker in _ALONE:
            continue
        length = int.from_bytes(data[place : place + 2], "big")
        if marker == 0xD9 or length < 2:  # the end, or no segment at all
            break
        body = data[place + 2 : place + length]
        place += length
        if marker in _FRAMES and len(body) >= 6:
            height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
            frame = (width, height, body[5], body[0])
        elif marker == 0xE1 and body[:6] == b"Exif\0\0":
            orientation = _orientation(body[6:])
        elif marker == 0xDA:  # the pixels
            break
    if frame is None or not frame[0] or not frame[1]:
        return None
    return Header(*frame, orientation, data.rfind(b"\xff\xd9") >= place)


def _marker(data: bytes, place: int) -> tuple[int, int] | None:
    """The next marker at `place` and where its segment begins, or None if there is none."""
    if place >= len(data) or data[place] != 0xFF:
        return None
    while place < len(data) and data[place] == 0xFF:  # fill bytes may precede it
        place += 1
    return (data[place], place + 1) if place < len(data) else None


def _orientation(exif: bytes) -> int:
    """The orientation tag of an EXIF block; 1 (upright) if there is none."""
    order = {b"II": "little", b"MM": "big"}.get(exif[:2])
    if order is None:
        return 1

    def number(place: int, size: int) -> int:
        return int.from_bytes(exif[place : place + size], "little" if order == "little" else "big")

    table = number(4, 4)
    for entry in range(number(table, 2)):
        place = table + 2 + 12 * entry
        if place + 12 > len(exif):
            break
        if number(place, 2) == _ORIENTATION:
            value = number(place + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1
