"""From a picture's file to pixels on the CPU, by the fastest installed decoder.

Plain JPEG files (8 bits, grey or colour, upright) are decoded by the faster of torchvision and
Pillow. Pillow decodes at the smallest scale that still has the needed pixels, which skips most of
the work on large photographs. It decodes everything else too: PNG, WebP, TIFF, GIF (first frame),
CMYK, 16 bits (scaled to 8), and pictures with an EXIF rotation.
"""

from __future__ import annotations

import importlib
import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout_train.errors import UsageError
from flatout_train.images import jpeg_header
from flatout_train.images.jpeg_header import Header

Box = tuple[int, int, int, int]
"""Left, top, width, height, in pixels of the upright picture."""
Decode = Callable[[bytes, Header, float], Tensor]
MAX_PIXELS = 178_956_970
"""Larger pictures count as decompression bombs, as in Pillow: 0.5 GB of pixels."""
MARGIN = 1.2
"""Factor by which a decoder must be faster than one of higher rank to be chosen: with a narrow lead
the choice would vary from run to run, and decoders round differently when they scale."""


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


@dataclass(frozen=True)
class Decoder:
    """Decodes a plain JPEG file to uint8 [height, width, 3], at no less than a scale <= 1."""

    name: str
    decode: Decode


def open_picture(data: bytes, decoder: Decoder | None) -> Picture:
    """The picture in `data`; CorruptError if it is none. If `decoder` is None, Pillow decodes
    everything.
    """
    if not data:
        raise CorruptError("the file is empty")
    header = jpeg_header.read(data)
    if header is None:
        return PillowPicture(data)
    if header.width * header.height > MAX_PIXELS:
        raise CorruptError(
            f"{header.width} x {header.height} pixels: too large, may be a decompression bomb"
        )
    if not header.complete:
        raise CorruptError("the JPEG file is truncated: it has no end-of-image marker")
    if decoder is None or not header.plain:
        return PillowPicture(data)
    return PlainPicture(data, header, decoder)


class PlainPicture:
    """A plain JPEG file, for a decoder that returns the full picture at some scale."""

    def __init__(self, data: bytes, header: Header, decoder: Decoder) -> None:
        self.width, self.height = header.width, header.height
        self._data, self._header, self._decoder = data, header, decoder

    def region(self, box: Box | None, scale: float) -> Tensor:
        pixels = self._decoder.decode(self._data, self._header, min(1.0, scale))
        if box is None:
            return pixels
        left, top, right, bottom = scaled(
            box, pixels.shape[1] / self.width, pixels.shape[0] / self.height
        )
        return pixels[top:bottom, left:right]


class PillowPicture:
    """Any picture that Pillow reads, rotated upright, in RGB."""

    def __init__(self, data: bytes) -> None:
        image = _pillow()
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
        if (by := _eighths(scale)) > 1:  # only effective for JPEG files
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


def candidates() -> list[Decoder]:
    """The installed decoders that work, highest rank first; Pillow, if installed, last."""
    decoders = ((name, _decode_if_usable(make)) for name, make in _MAKERS.items())
    return [Decoder(name, decode) for name, decode in decoders if decode is not None]


def _decode_if_usable(make: Callable[[], Decode]) -> Decode | None:
    try:
        return make()
    except Exception:  # a broken package (torchvision: RuntimeError) counts as not installed
        return None


def choose(name: str, samples: Sequence[bytes]) -> tuple[Decoder, str]:
    """The decoder of that name, or for "auto" the fastest on these plain JPEG files; and why.

    Raises UsageError if it is not installed, or no decoder is.
    """
    decoders = candidates()
    if not decoders:
        raise UsageError("image_loader needs a decoder: pip install pillow")
    if name != "auto":
        for decoder in decoders:
            if decoder.name == name:
                return decoder, "requested"
        known = ", ".join(decoder.name for decoder in decoders)
        raise UsageError(
            f"image_loader: decoder={name!r} is not installed; pass 'auto' or one of: {known}."
        )
    if not samples:
        return decoders[-1], "the sampled pictures are not plain JPEG files"
    if len(decoders) == 1:
        return decoders[0], "no other decoder is installed"
    rates = {decoder.name: rate(decoder, samples) for decoder in decoders}
    best = decoders[0]
    for decoder in decoders[1:]:
        if rates[decoder.name] > rates[best.name] * MARGIN:
            best = decoder
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in rates.items())
    return best, f"pictures per second and thread, on {len(samples)} of yours: {speeds}"


def rate(decoder: Decoder, samples: Sequence[bytes]) -> float:
    """Plain JPEG files decoded per second, the best of three rounds; 0 if one fails."""
    plain = [(data, header) for data in samples if (header := jpeg_header.read(data))]
    best = math.inf
    try:
        for _ in range(3):
            begin = time.perf_counter()
            for data, header in plain:
                decoder.decode(data, header, 1.0)
            best = min(best, time.perf_counter() - begin)
    except Exception:  # a corrupt sample, or a decoder that does not support it
        return 0.0
    return len(plain) / best


def _torchvision() -> Decode:
    package = importlib.import_module("torchvision.io")
    mode = package.ImageReadMode.RGB

    def decode(data: bytes, header: Header, scale: float) -> Tensor:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return package.decode_jpeg(encoded, mode).permute(1, 2, 0)  # type: ignore[no-any-return]

    return decode


def _by_pillow() -> Decode:
    importlib.import_module("PIL.Image")

    def decode(data: bytes, header: Header, scale: float) -> Tensor:
        return PillowPicture(data).region(None, scale)

    return decode


def _eighths(scale: float) -> int:
    """The largest divisor of a side (8, 4, 2 or 1) that still gives at least `scale`."""
    return next(divisor for divisor in (8, 4, 2, 1) if divisor == 1 or scale * divisor <= 1)


_MAKERS: dict[str, Callable[[], Decode]] = {
    "torchvision": _torchvision,
    "pillow": _by_pillow,
}
"""Highest rank first."""
