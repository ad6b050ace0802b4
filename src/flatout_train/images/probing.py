"""A look at a few of the user's pictures: how large they are, and which decoder is fastest."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from flatout_train.errors import UsageError
from flatout_train.images import decoding, device_decoding, jpeg_header
from flatout_train.images.cache import Side
from flatout_train.images.decoding import MARGIN, Decoder
from flatout_train.images.device_decoding import DeviceDecoder
from flatout_train.images.folder import Pictures

READ, WEIGHED = 16, 256
"""Pictures that are read, and whose files' sizes are taken."""
MEASURED_PIXELS = 4_000_000
"""By how many pixels decoders are measured: some 0.1 s in all."""


@dataclass(frozen=True)
class Probe:
    """What a few pictures, evenly spread over the folder, told."""

    sides: list[Side]
    """Height and width of each."""
    mean_file: float
    """Bytes."""
    decoder: Decoder
    device_decoder: DeviceDecoder | None
    reason: str
    """Why these decoders."""


def probe(
    pictures: Pictures, asked: str, device: torch.device, batch_size: int, workers: int
) -> Probe:
    """Look at some of the pictures; UsageError where the decoder asked for is not there."""
    samples = [data for place in _spread(len(pictures), READ) if (data := _read(pictures, place))]
    sides = [side for data in samples if (side := _side(data)) is not None]
    sizes = [size for place in _spread(len(pictures), WEIGHED) if (size := _weigh(pictures, place))]
    measured = _measured(samples)
    together = device_decoding.candidates(device, batch_size)
    chosen = next((decoder for decoder in together if decoder.name == asked), None)
    decoder, reason = decoding.choose("auto" if chosen else asked, measured)
    if chosen is not None:
        reason = f"{chosen.name}: as asked"
    elif asked == "auto" and together:
        chosen, reason = _compared(together, decoder, measured, device, workers, reason)
    else:
        reason = f"{decoder.name}: {reason}"
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    return Probe(sides, mean, decoder, chosen, reason)


def _compared(
    together: list[DeviceDecoder],
    decoder: Decoder,
    measured: list[bytes],
    device: torch.device,
    workers: int,
    reason: str,
) -> tuple[DeviceDecoder | None, str]:
    """The fastest on the device, or None where all threads on the host are faster."""
    wait = torch.get_device_module(device).synchronize
    rates = {one.name: device_decoding.rate(one, measured, wait) for one in together}
    best = max(together, key=lambda one: rates[one.name])
    host = decoding.rate(decoder, measured) * workers
    told = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    told = f"pictures per second: {told}, {decoder.name} in {workers} threads {host:.0f}"
    if rates[best.name] > host / MARGIN and rates[best.name] > 0:
        return best, f"{best.name}: {told}"
    return None, f"{decoder.name}: {told}"


def _spread(count: int, most: int) -> list[int]:
    some = min(count, most)
    return [place * count // some for place in range(some)]


def _read(pictures: Pictures, place: int) -> bytes:
    try:
        return pictures.path(place).read_bytes()
    except OSError:  # the reader will say so when its turn comes
        return b""


def _weigh(pictures: Pictures, place: int) -> int:
    try:
        return os.stat(pictures.path(place)).st_size  # noqa: PTH116 (the same, in fewer steps)
    except OSError:
        return 0


def _side(data: bytes) -> Side | None:
    try:
        picture = decoding.open_picture(data, None)
    except UsageError:  # no Pillow: JPEG files tell it themselves
        header = jpeg_header.read(data)
        return (header.height, header.width) if header else None
    except Exception:
        return None
    return picture.height, picture.width


def _measured(samples: list[bytes]) -> list[bytes]:
    """Plain JPEG files among the samples, some 4 million pixels in all."""
    found: list[bytes] = []
    pixels = 0
    for data in samples:
        header = jpeg_header.read(data)
        if header is None or not header.plain or not header.complete:
            continue
        if found and pixels + header.width * header.height > MEASURED_PIXELS:
            break
        found.append(data)
        pixels += header.width * header.height
    return found
