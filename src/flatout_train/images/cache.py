"""Pictures cached in memory from the first epoch on: decoded, or as encoded files.

Decoded pictures are stored on *canvases*: each whole picture resized to one common height and
width, so that a data set is one tensor of a size known beforehand, and any region can still be
cropped. A canvas is as large as the pictures are, at most twice the model's input size; where that
does not fit, 256/224 of it. What fits nowhere is not cached.
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

HOST_SHARE = 0.5
"""Share of the host memory that this process may still take."""
DEVICE_SHARE = 0.25
"""Share of the free device memory: the model may not be allocated yet."""
LARGE, SMALL = 2.0, 256 / 224
"""Sides of a canvas, as multiples of the model's input size."""
KINDS = ("auto", "device", "host", "files")

Side = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class CachePlan:
    """What is cached and where: "device" or "host" (canvases), "files" (encoded) or "none"."""

    kind: str
    canvas: Side | None
    """Height and width of canvases to resize pictures to, or None if they are cropped directly."""
    reason: str


@dataclass(frozen=True)
class Room:
    """Bytes that may be used, or None if unknown."""

    host: int | None
    device: int | None


def plan(
    cache: str | bool,
    count: int,
    sizes: Sequence[Side],
    mean_file: float,
    room: Room,
    through: Side | None = None,
) -> CachePlan:
    """The form in which to cache `count` pictures: on one of the canvases `sizes`, largest first,
    or as files.

    `mean_file`: bytes. `through`: pictures are resized to this canvas even if none is cached.
    Raises UsageError for an unknown `cache`.
    """
    if cache is not False and cache not in KINDS:
        raise UsageError(
            f"image_loader: cache={cache!r} must be 'auto', 'device', 'host', 'files' or False."
        )
    if cache is False:
        return CachePlan("none", through, "requested")
    for kind, room_bytes in (("device", room.device), ("host", room.host)):
        fitting = [side for side in sizes if _fits(count * side[0] * side[1] * 3, room_bytes)]
        if sizes and (cache == kind or (cache == "auto" and fitting)):
            side = (fitting or sizes[-1:])[0]
            return CachePlan(kind, side, _kept_note(kind, count, side, room_bytes))
    files = int(count * mean_file)
    if cache == "files" or (cache == "auto" and _fits(files, room.host)):
        return CachePlan("files", through, f"the files, {_size(files)} together, in host memory")
    return CachePlan("none", through, _why_not(count, sizes, files, room))


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


def _fits(needed_bytes: int, room: int | None) -> bool:
    return room is not None and needed_bytes <= room


def _kept_note(kind: str, count: int, side: Side, room_bytes: int | None) -> str:
    needed = _size(count * side[0] * side[1] * 3)
    of = "" if room_bytes is None else f" of {_size(room_bytes)} that may be used"
    return f"decoded, {side[1]} x {side[0]} pixels each: {needed}{of} in {kind} memory"


def _why_not(count: int, sizes: Sequence[Side], files: int, room: Room) -> str:
    if room.host is None:
        return "the available memory is unknown on this system; cache='host' caches all"
    decoded = [f"{_size(count * h * w * 3)} decoded" for h, w in sizes[-1:]]
    needed = " and ".join([*decoded, f"{_size(files)} of files"])
    return f"{needed} do not fit in the {_size(room.host)} that may be used"


def _size(count: float | None) -> str:
    """Bytes in binary units, such as 1.5 GiB; "unknown" if `count` is None."""
    if count is None:
        return "unknown"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def room(device: torch.device) -> Room:
    """Memory that may be used now, less what other caches of this process will still fill."""
    host = spare_memory()
    if host is not None:
        waiting = sum(cache.unfilled() for cache in list(_caches))
        host = max(0, int(host * HOST_SHARE) - waiting)
    cuda = device.type == "cuda"  # elsewhere the free memory is unknown
    return Room(host, int(torch.cuda.mem_get_info(device)[0] * DEVICE_SHARE) if cuda else None)


class Canvases:
    """Decoded pictures on one tensor, uint8 [count, height, width, 3], on the host or a device."""

    def __init__(self, count: int, side: Side, device: torch.device) -> None:
        self.on_device = device.type != "cpu"
        self.pixels = torch.empty(count, *side, 3, dtype=torch.uint8, device=device)
        self.sizes: list[Side | None] = [None] * count
        """Height and width of each picture before resizing, or None if not cached yet."""
        _caches.add(self)

    def get(self, index: int) -> Side | None:
        """Height and width of the picture, or None if its canvas is not cached yet."""
        return self.sizes[index]

    def put(self, index: int, canvas: Tensor, side: Side) -> None:
        self.pixels[index].copy_(canvas)
        self.sizes[index] = side  # last: from now on other threads may read it

    def put_together(self, indices: Sequence[int], batch: Tensor, sizes: Sequence[Side]) -> None:
        """Store the canvases of a batch that is on the device already."""
        self.pixels.index_copy_(0, torch.tensor(indices).to(batch.device), batch)
        for index, side in zip(indices, sizes, strict=True):
            self.sizes[index] = side

    def unfilled(self) -> int:
        """Bytes that will still be written, which the system does not count as used yet."""
        canvas_bytes = self.pixels[0].numel() if len(self.pixels) else 0
        return 0 if self.on_device else canvas_bytes * self.sizes.count(None)


class Files:
    """The files' content, up to `limit` bytes: their total size is only an estimate."""

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
"""Caches in use: memory that they will still fill is not available to others."""
