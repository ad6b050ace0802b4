"""Pictures kept in memory from the first epoch on: decoded, or as their files.

Decoded pictures are kept on *canvases*: each whole picture squeezed to one common height and
width, so that a data set is one tensor of a size known beforehand, and any region can still be cut
out. A canvas is as large as the pictures are, at most twice the size that the model sees; where
that does not fit, 256/224 of it. What fits nowhere is not kept.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flatout_agent.limits import spare_memory
from flatout_train.errors import UsageError
from flatout_train.images.augmenting import Cuts
from flatout_train.loader.caching import device_memory

HOST_SHARE = 0.5
"""Of the host memory that this process may still take."""
DEVICE_SHARE = 0.25
"""Of the free device memory: the model may not be there yet."""
LARGE, SMALL = 2.0, 256 / 224
"""Sides of a canvas, in sizes of what the model sees."""
KINDS = ("auto", "device", "host", "files")

Side = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Plan:
    """What is kept, where: "device" or "host" (canvases), "files" (as they are) or "none"."""

    kind: str
    canvas: Side | None
    """Pictures go through canvases of this height and width; None: straight to what is cut."""
    reason: str


@dataclass(frozen=True)
class Room:
    """Bytes that may be used; None where that cannot be known."""

    host: int | None
    device: int | None


def plan(
    asked: str | bool,
    count: int,
    sizes: Sequence[Side],
    mean_file: float,
    room: Room,
    through: Side | None = None,
) -> Plan:
    """What to keep of `count` pictures: on one of these canvases, largest first, or the files.

    `through`: pictures go through this canvas though it be kept nowhere.
    """
    if asked is not False and asked not in KINDS:
        raise UsageError(
            f"image_loader: cache={asked!r} must be 'auto', 'device', 'host', 'files' or False."
        )
    if asked is False:
        return Plan("none", through, "as asked")
    for kind, space in (("device", room.device), ("host", room.host)):
        fitting = [side for side in sizes if _fits(count * side[0] * side[1] * 3, space)]
        if sizes and (asked == kind or (asked == "auto" and fitting)):
            side = (fitting or sizes[-1:])[0]
            return Plan(kind, side, _told(kind, count, side, space))
    files = int(count * mean_file)
    if asked == "files" or (asked == "auto" and _fits(files, room.host)):
        return Plan("files", through, f"the files, {_bytes(files)} together, in host memory")
    return Plan("none", through, _why_not(count, sizes, files, room))


def canvases(cuts: Cuts, sides: Sequence[Side]) -> list[Side]:
    """The canvases that would serve, largest first."""
    if not cuts.random:
        return [(cuts.size, cuts.size)]
    if not sides:  # none of those tried could be read
        return []
    tallest, widest = max(h for h, _ in sides), max(w for _, w in sides)
    limits = [math.ceil(cuts.size * factor) for factor in (LARGE, SMALL)]
    found = [(min(tallest, limit), min(widest, limit)) for limit in limits]
    return found[:1] if found[0] == found[1] else found


def _fits(size: int, room: int | None) -> bool:
    return room is not None and size <= room


def _told(kind: str, count: int, side: Side, space: int | None) -> str:
    size = _bytes(count * side[0] * side[1] * 3)
    of = "" if space is None else f" of {_bytes(space)} that may be used"
    return f"decoded, {side[1]} x {side[0]} pixels each: {size}{of} in {kind} memory"


def _why_not(count: int, sizes: Sequence[Side], files: int, room: Room) -> str:
    if room.host is None:
        return "how much memory is available cannot be told on this system; cache='host' keeps all"
    decoded = [f"{_bytes(count * h * w * 3)} decoded" for h, w in sizes[-1:]]
    needed = " and ".join([*decoded, f"{_bytes(files)} of files"])
    return f"{needed} do not fit in the {_bytes(room.host)} that may be used"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def room(device: torch.device) -> Room:
    """What may be used now, less what other caches of this process will still fill."""
    host = spare_memory()
    if host is not None:
        waiting = sum(cache.unfilled() for cache in list(_caches))
        host = max(0, int(host * HOST_SHARE) - waiting)
    free = device_memory(device)
    return Room(host, None if free is None else int(free * DEVICE_SHARE))


class Canvases:
    """Decoded pictures on one tensor, uint8 [count, height, width, 3], on the host or a device."""

    def __init__(self, count: int, side: Side, device: torch.device) -> None:
        self.on_device = device.type != "cpu"
        self.pixels = torch.empty(count, *side, 3, dtype=torch.uint8, device=device)
        self.sizes: list[Side | None] = [None] * count
        """Height and width of each picture before it was squeezed; None: not there yet."""
        _caches.add(self)

    def get(self, index: int) -> Side | None:
        """Size of the picture if its canvas is there."""
        return self.sizes[index]

    def put(self, index: int, canvas: Tensor, size: Side) -> None:
        self.pixels[index].copy_(canvas)
        self.sizes[index] = size  # last: from now on other threads read it

    def put_together(self, indices: Sequence[int], batch: Tensor, sizes: Sequence[Side]) -> None:
        """Canvases of a batch that lies on the device already."""
        self.pixels.index_copy_(0, torch.tensor(indices).to(batch.device), batch)
        for index, size in zip(indices, sizes, strict=True):
            self.sizes[index] = size

    def unfilled(self) -> int:
        """Bytes that are still to be written, which the system does not count as used yet."""
        each = self.pixels[0].numel() if len(self.pixels) else 0
        return 0 if self.on_device else each * self.sizes.count(None)


class Files:
    """The files' bytes, up to `limit` of them: their sizes were estimated from a few."""

    on_device = False

    def __init__(self, limit: float) -> None:
        self._data: dict[int, bytes] = {}
        self._left = limit
        self._lock = threading.Lock()
        _caches.add(self)

    def get(self, index: int) -> bytes | None:
        return self._data.get(index)

    def put(self, index: int, data: bytes) -> None:
        with self._lock:
            if len(data) <= self._left and index not in self._data:
                self._left -= len(data)
                self._data[index] = data

    def unfilled(self) -> int:
        return 0 if math.isinf(self._left) else int(self._left)


_caches: weakref.WeakSet[Canvases | Files] = weakref.WeakSet()
"""Those in use: what they will still fill is not available to another."""
