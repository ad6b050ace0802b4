"""Decoded pictures cached in host memory from the first epoch on.

They are stored on *canvases*: each whole picture resized to one common height and width, so that a
data set is one tensor of a size known beforehand, and any region can still be cropped. A canvas is
as large as the pictures are, at most twice the model's input size; where that does not fit, 256/224
of it. What does not fit is not cached: the system keeps the files that it has read, as far as there
is room.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flatout_agent.limits import spare_memory
from flatout_train.errors import UsageError
from flatout_train.images.augmenting import Cuts

HOST_SHARE = 0.5
"""Share of the host memory that this process may still take."""
LARGE, SMALL = 2.0, 256 / 224
"""Sides of a canvas, as multiples of the model's input size."""

Side = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class CachePlan:
    """Whether decoded pictures are kept, and the canvas that they are resized to."""

    keeps: bool
    canvas: Side | None
    """Height and width of canvases to resize pictures to, or None if they are cropped directly."""
    reason: str


def plan(
    cache: str | bool,
    count: int,
    sizes: Sequence[Side],
    room: int | None,
    through: Side | None = None,
) -> CachePlan:
    """Whether to keep `count` pictures on one of the canvases `sizes`, largest first.

    `room`: bytes that may be used, or None if unknown. `through`: pictures are resized to this
    canvas even if none is kept. Raises UsageError for an unknown `cache`.
    """
    if cache is not False and cache not in ("auto", "host"):
        raise UsageError(f"image_loader: cache={cache!r} must be 'auto', 'host' or False.")
    if cache is False:
        return CachePlan(False, through, "requested")
    for side in sizes:
        if (room is not None and _bytes(count, side) <= room) or (
            cache == "host" and side == sizes[-1]
        ):
            of = "" if room is None else f" of {_size(room)} that may be used"
            kept = f"decoded, {side[1]} x {side[0]} pixels each: {_size(_bytes(count, side))}"
            return CachePlan(True, side, f"{kept}{of} in host memory")
    if room is None:
        reason = "the available memory is unknown on this system; cache='host' caches all"
    else:
        needed = [_size(_bytes(count, side)) for side in sizes[-1:]] or ["pictures of unknown size"]
        reason = f"{needed[0]} decoded do not fit in the {_size(room)} that may be used"
    return CachePlan(False, through, reason)


def canvases(cuts: Cuts, sides: Sequence[Side]) -> list[Side]:
    """The suitable canvases, largest first."""
    if not cuts.random:
        return [(cuts.size, cuts.size)]
    if not sides:  # no sampled picture could be read
        return []
    tallest, widest = max(h for h, _ in sides), max(w for _, w in sides)
    limits = [math.ceil(cuts.size * factor) for factor in (LARGE, SMALL)]
    sizes = [(min(tallest, limit), min(widest, limit)) for limit in limits]
    return sizes[:1] if sizes[0] == sizes[1] else sizes


def _bytes(count: int, side: Side) -> int:
    return count * side[0] * side[1] * 3


def _size(count: int) -> str:
    """Bytes in binary units, such as 1.5 GiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def room() -> int | None:
    """Host memory that may be used now, less what other caches of this process will still fill."""
    host = spare_memory()
    if host is None:
        return None
    return max(0, int(host * HOST_SHARE) - sum(cache.unfilled() for cache in list(_caches)))


class Canvases:
    """Decoded pictures on one tensor, uint8 [count, height, width, 3], in host memory."""

    def __init__(self, count: int, side: Side) -> None:
        self.pixels = torch.empty(count, *side, 3, dtype=torch.uint8)
        self.sizes: list[Side | None] = [None] * count
        """Height and width of each picture before resizing, or None if not cached yet."""
        _caches.add(self)

    def put(self, index: int, canvas: Tensor, side: Side) -> None:
        self.pixels[index].copy_(canvas)
        self.sizes[index] = side  # last: from now on other threads may read it

    def unfilled(self) -> int:
        """Bytes that will still be written, which the system does not count as used yet."""
        canvas_bytes = self.pixels[0].numel() if len(self.pixels) else 0
        return canvas_bytes * self.sizes.count(None)


_caches: weakref.WeakSet[Canvases] = weakref.WeakSet()
"""Caches in use: memory that they will still fill is not available to others."""
