"""From a picture's file to pixels on the CPU, by Pillow.

It decodes JPEG files at the smallest scale that still has the needed pixels, which skips most of
the work on large photographs, and everything else too: PNG, WebP, TIFF, GIF (first frame), CMYK, 16
bits (scaled to 8), and pictures with an EXIF rotation.
"""

from __future__ import annotations

import importlib
import io
import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout_train.errors import UsageError

Box = tuple[int, int, int, int]
"""Left, top, width, height, in pixels of the upright picture."""
MAX_PIXELS = 178_956_970
"""Larger pictures count as decompression bombs, as in Pillow: 0.5 GB of pixels."""


class CorruptError(Exception):
    """The picture cannot be decoded; the message says why."""


class Picture(Protocol):
    """An encoded picture; width and height are of the upright picture."""

    width: int
    height: int

    def region(self, box: Box | None, scale: float) -> Tensor:
        """Pixels of `box` (None for all), uint8 [height, width, 3], at no less than `scale`
        <= 1.
        """


class PillowPicture:
    """Any picture that Pillow reads, rotated upright, in RGB; CorruptError if it is none."""

    def __init__(self, data: bytes) -> None:
        image = _pillow()
        if not data:
            raise CorruptError("the file is empty")
        try:
            self._image = image.open(io.BytesIO(data))
        except image.UnidentifiedImageError:
            raise CorruptError("not a picture, or in a format unknown to Pillow") from None
        width, height = self._image.size
        self._orientation = _orientation(self._image)
        if width * height > MAX_PIXELS:
            raise CorruptError(f"{width} x {height} pixels: too large, may be a decompression bomb")
        turned = self._orientation in (5, 6, 7, 8)
        self.width, self.height = (height, width) if turned else (width, height)

    def region(self, box: Box | None, scale: float) -> Tensor:
        image = self._image
        # The largest divisor of a side that still gives at least `scale`.
        by = next(divisor for divisor in (8, 4, 2, 1) if divisor == 1 or scale * divisor <= 1)
        if by > 1:  # only effective for JPEG files
            image.draft(None, (max(1, image.width // by), max(1, image.height // by)))
        if self._orientation != 1:
            image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
        if box is not None:
            edges = scaled(box, image.width / self.width, image.height / self.height)
            image = image.crop(edges)
        image = _rgb(image)
        flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return flat.view(image.height, image.width, 3)


def scaled(box: Box, x: float, y: float) -> Box:
    """The edges (left, top, right, bottom) of `box` in a picture scaled by x and y."""
    left, top, width, height = box
    first, upper = math.floor(left * x + 1e-6), math.floor(top * y + 1e-6)
    right, lower = math.ceil((left + width) * x - 1e-6), math.ceil((top + height) * y - 1e-6)
    return first, upper, max(first + 1, right), max(upper + 1, lower)


def _orientation(image: Any) -> int:
    """The EXIF tag, 1 to 8; 1 (upright) if it is missing or cannot be read."""
    try:
        orientation = image.getexif().get(0x0112, 1)
    except Exception:  # a broken tag; broken pixels show in decoding
        return 1
    return orientation if orientation in range(1, 9) else 1


def _rgb(image: Any) -> Any:
    """In RGB; 16 bits become 8 by dropping the low byte, where Pillow would clip at 255."""
    if image.mode.startswith("I"):
        pixels = torch.frombuffer(bytearray(image.convert("I").tobytes()), dtype=torch.int32)
        high = (pixels >> 8).clamp_(0, 255).to(torch.uint8)
        image = _pillow().frombytes("L", image.size, bytes(high.untyped_storage()))
    elif image.mode == "F":
        raise CorruptError("pixels are floating-point numbers of unknown range")
    return image.convert("RGB")


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise UsageError(
            "image_loader needs Pillow to decode these pictures: pip install pillow"
        ) from None


def rate(samples: Sequence[bytes]) -> float:
    """Pictures decoded per second, the best of three rounds; 0 if one fails."""
    best = math.inf
    try:
        for _ in range(3):
            begin = time.perf_counter()
            for data in samples:
                PillowPicture(data).region(None, 1.0)
            best = min(best, time.perf_counter() - begin)
    except Exception:  # a corrupt sample
        return 0.0
    return len(samples) / best
