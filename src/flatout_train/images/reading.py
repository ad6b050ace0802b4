"""Reading single pictures from the disk or the cache, in threads; corrupt ones are skipped."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flatout_train.errors import UsageError
from flatout_train.images import augmenting, jpeg_header
from flatout_train.images.augmenting import Cuts
from flatout_train.images.cache import Canvases, Side
from flatout_train.images.decoding import (
    MAX_PIXELS,
    Box,
    CorruptError,
    Picture,
    PillowPicture,
    scaled,
)
from flatout_train.images.folder import ImageFiles

ENOUGH = 32
"""Pictures tried before a majority of corrupt ones raises an error."""
_SHOWN = 3
_NOT_THE_FILE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


@dataclass(frozen=True)
class SkippedImage:
    """A picture that could not be read or decoded, and why."""

    path: Path
    reason: str


@dataclass(slots=True)
class Item:
    """The picture at one place of a batch."""

    index: int
    """Index of the picture."""
    encoded: Tensor | None = None
    """The file, uint8 [bytes], if a device will decode it, or None if its pixels are in the
    slot."""
    pixels: int = 0
    """Pixels of a picture that a device will decode."""


class Reader:
    """Reads pictures into slots of a batch; called by many threads concurrently.

    A corrupt picture is replaced by the next intact one by index (`replace`), which is often of the
    same class, or by none.
    """

    def __init__(
        self,
        pictures: ImageFiles,
        cuts: Cuts,
        *,
        decodes_on_device: bool = False,
        canvas: Side | None = None,
        canvases: Canvases | None = None,
        replace: bool = True,
    ) -> None:
        self.pictures, self.cuts = pictures, cuts
        self.decodes_on_device = decodes_on_device
        self.canvas, self.canvases = canvas, canvases
        self.replace = replace
        self.skipped: dict[int, SkippedImage] = {}
        """By index, in the order in which they were found."""
        self._read_once = bytearray(len(pictures))

    def read(self, index: int, draws: Sequence[float], slot: Tensor) -> Item | None:
        """Read picture `index`, or its replacement, into `slot` uint8 [h, w, 3]; None
        if skipped.
        """
        count = len(self.pictures)
        for distance in range(count if self.replace else 1):
            at = (index + distance) % count
            if at in self.skipped:
                continue
            item = self._read_or_skip(at, draws, slot)
            if item is not None:
                return item
        if self.replace:
            raise self._mostly_corrupt()
        return None

    @property
    def good(self) -> int:
        """Pictures that were read at least once."""
        return self._read_once.count(1)

    def skip(self, index: int, reason: str) -> None:
        """Skip this picture from now on; UsageError once most are skipped."""
        self.skipped.setdefault(index, SkippedImage(self.pictures.path(index), reason))
        if len(self.skipped) + self.good >= min(ENOUGH, len(self.pictures)):
            self.check()

    def check(self) -> None:
        """UsageError if more than half of the pictures tried could not be read."""
        if len(self.skipped) > self.good:
            raise self._mostly_corrupt()

    def _mostly_corrupt(self) -> UsageError:
        tried = len(self.skipped) + self.good
        return UsageError(
            f"image_loader: {len(self.skipped)} of the first {tried} pictures of "
            f"{self.pictures.folder} cannot be read, such as "
            f"{summary(list(self.skipped.values()))}; repair or remove these files."
        )

    def _read_or_skip(self, at: int, draws: Sequence[float], slot: Tensor) -> Item | None:
        try:
            item = self._read(at, draws, slot)
        except (UsageError, MemoryError, torch.OutOfMemoryError):
            raise
        except OSError as error:
            if error.errno in _NOT_THE_FILE:
                raise
            reason = error.strerror or str(error)
        except CorruptError as error:
            reason = str(error)
        except Exception as error:  # decoders raise errors of any class
            reason = error_line(error)
        else:
            self._read_once[at] = 1
            return item
        self.skip(at, reason)
        return None

    def _read(self, at: int, draws: Sequence[float], slot: Tensor) -> Item:
        if self.canvases and (size := self.canvases.sizes[at]) is not None:
            slot.copy_(self._cut(self.canvases.pixels[at], size, draws))
            return Item(at)
        data = self.pictures.path(at).read_bytes()
        if self.decodes_on_device:
            header = jpeg_header.read(data)
            if header is not None and for_device(header):
                encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                return Item(at, encoded, header.height * header.width)
        picture = PillowPicture(data)
        if self.canvas is None:
            slot.copy_(augmenting.cut(picture, self.cuts, draws))
            return Item(at)
        canvas, size = self._squeezed(picture, self.canvas), (picture.height, picture.width)
        if self.canvases:
            self.canvases.put(at, canvas, size)
        slot.copy_(self._cut(canvas, size, draws))
        return Item(at)

    def _squeezed(self, picture: Picture, canvas: Side) -> Tensor:
        """The whole picture on a canvas, uint8 [h, w, 3]; cropped already if not at random."""
        if not self.cuts.random:
            return augmenting.centre(picture, self.cuts)
        scale = max(canvas[0] / picture.height, canvas[1] / picture.width)
        return augmenting.resized(picture.region(None, scale), *canvas)

    def _cut(self, canvas: Tensor, size: Side, draws: Sequence[float]) -> Tensor:
        flip = self.cuts.flips(draws)
        if not self.cuts.random:
            return canvas.flip(1) if flip else canvas
        box = box_on_canvas(size, (canvas.shape[0], canvas.shape[1]), draws)
        return augmenting.cut_on_canvas(canvas, self.cuts.size, box, flip)


def summary(images: Sequence[SkippedImage]) -> str:
    """The first of these pictures with the reason of each, for messages."""
    return "; ".join(f"{image.path} ({image.reason})" for image in images[:_SHOWN])


def error_line(error: Exception) -> str:
    """A decoder's error as one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def for_device(header: jpeg_header.Header) -> bool:
    """Whether a device can decode it; the CPU decodes unusual files and reports broken ones."""
    return header.plain and header.complete and header.width * header.height <= MAX_PIXELS


def box_on_canvas(size: Side, canvas: Side, draws: Sequence[float]) -> Box:
    """The random region of a picture of that size, in coordinates of its canvas."""
    box = augmenting.random_box(size[1], size[0], draws)
    left, top, right, bottom = scaled(box, canvas[1] / size[1], canvas[0] / size[0])
    return left, top, right - left, bottom - top
