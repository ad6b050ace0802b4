"""Sampling a few of the user's pictures: how large they are, and which decoder is fastest."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flatout_train.errors import UsageError
from flatout_train.images import decoding, device_decoding, jpeg_header
from flatout_train.images.cache import Side
from flatout_train.images.decoding import MARGIN, Decoder
from flatout_train.images.device_decoding import DeviceDecoder
from flatout_train.images.folder import ImageFiles

READ = 16
"""Pictures that are read."""
MEASURED_PIXELS = 4_000_000
"""Pixels on which decoders are timed: about 0.1 s in all."""


@dataclass(frozen=True)
class ImageProbe:
    """Facts of a few pictures, evenly spread over the folder."""

    sides: list[Side]
    """Height and width of each."""
    decoder: Decoder
    device_decoder: DeviceDecoder | None
    reason: str
    """Why these decoders were chosen."""


def probe(pictures: ImageFiles, choice: str, device: torch.device, workers: int) -> ImageProbe:
    """Sample some of the pictures; UsageError if the requested decoder is not installed."""
    some = min(len(pictures), READ)
    places = [place * len(pictures) // some for place in range(some)]
    samples = [data for place in places if (data := _read(pictures, place))]
    sides = [side for data in samples if (side := _side(data)) is not None]
    measured = _measured(samples)
    together = device_decoding.candidates(device)
    chosen = next((decoder for decoder in together if decoder.name == choice), None)
    decoder, reason = decoding.choose("auto" if chosen else choice, measured)
    if chosen is not None:
        reason = f"{chosen.name}: requested"
    elif choice == "auto" and together:
        chosen, reason = _compared(together, decoder, measured, device, workers, reason)
    else:
        reason = f"{decoder.name}: {reason}"
    return ImageProbe(sides, decoder, chosen, reason)


def _compared(
    together: list[DeviceDecoder],
    decoder: Decoder,
    measured: list[bytes],
    device: torch.device,
    workers: int,
    reason: str,
) -> tuple[DeviceDecoder | None, str]:
    """The fastest device decoder, or None if the host's threads together are faster; and why."""
    wait = torch.get_device_module(device).synchronize
    rates = {
        candidate.name: device_decoding.rate(candidate, measured, wait) for candidate in together
    }
    best = max(together, key=lambda candidate: rates[candidate.name])
    host = decoding.rate(decoder, measured) * workers
    speeds = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    speeds = f"pictures per second: {speeds}, {decoder.name} in {workers} threads {host:.0f}"
    if rates[best.name] > host / MARGIN and rates[best.name] > 0:
        return best, f"{best.name}: {speeds}"
    return None, f"{decoder.name}: {speeds}"


def _read(pictures: ImageFiles, place: int) -> bytes:
    try:
        return pictures.path(place).read_bytes()
    except OSError:  # the reader reports it in its turn
        return b""


def _side(data: bytes) -> Side | None:
    try:
        picture = decoding.open_picture(data, None)
    except UsageError:  # no Pillow: only the size of JPEG files can be read
        header = jpeg_header.read(data)
        return (header.height, header.width) if header else None
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
