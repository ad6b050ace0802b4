"""Sampling a few of the user's pictures: how large they are, and which decoder is fastest."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flatout_train.errors import UsageError
from flatout_train.images import decoding, device_decoding, jpeg_header
from flatout_train.images.cache import Side
from flatout_train.images.device_decoding import DeviceDecoder
from flatout_train.images.folder import ImageFiles

READ = 16
"""Pictures that are read."""
MEASURED_PIXELS = 4_000_000
"""Pixels on which decoders are timed: about 0.1 s in all."""
MARGIN = 1.2
"""The device decodes unless the host is faster by this factor: it has other work."""
HOST = "pillow"


@dataclass(frozen=True)
class ImageProbe:
    """Facts of a few pictures, evenly spread over the folder."""

    sides: list[Side]
    """Height and width of each."""
    device_decoder: DeviceDecoder | None
    reason: str
    """The decoder that was chosen, and why."""


def probe(pictures: ImageFiles, choice: str, device: torch.device, workers: int) -> ImageProbe:
    """Sample some of the pictures; UsageError if the requested decoder is not installed."""
    some = min(len(pictures), READ)
    places = [place * len(pictures) // some for place in range(some)]
    samples = [data for place in places if (data := _read(pictures, place))]
    sides = [side for data in samples if (side := _side(data)) is not None]
    on_device = device_decoding.installed(device)
    known = ["auto", HOST, *([] if on_device is None else [on_device.name])]
    if choice not in known:
        raise UsageError(
            f"image_loader: decoder={choice!r} is not installed; pass one of: {', '.join(known)}."
        )
    if on_device is None or choice == HOST:
        return ImageProbe(sides, None, HOST)
    if choice == on_device.name:
        return ImageProbe(sides, on_device, f"{on_device.name}: requested")
    measured = _measured(samples)
    there = device_decoding.rate(on_device, measured, torch.get_device_module(device).synchronize)
    here = decoding.rate(measured) * workers if measured else 0.0
    faster = there > here / MARGIN and there > 0
    reason = (
        f"{on_device.name if faster else HOST}: pictures per second: {on_device.name} {there:.0f}, "
        f"{HOST} in {workers} threads {here:.0f}"
    )
    return ImageProbe(sides, on_device if faster else None, reason)


def _read(pictures: ImageFiles, place: int) -> bytes:
    try:
        return pictures.path(place).read_bytes()
    except OSError:  # the reader reports it in its turn
        return b""


def _side(data: bytes) -> Side | None:
    try:
        picture = decoding.PillowPicture(data)
    except UsageError:  # there is no Pillow
        raise
    except Exception:
        return None
    return picture.height, picture.width


def _measured(samples: list[bytes]) -> list[bytes]:
    """Plain JPEG files among the samples, about 4 million pixels in all."""
    plain: list[bytes] = []
    pixels = 0
    for data in samples:
        header = jpeg_header.read(data)
        if header is None or not header.plain or not header.complete:
            continue
        if plain and pixels + header.width * header.height > MEASURED_PIXELS:
            break
        plain.append(data)
        pixels += header.width * header.height
    return plain
