"""From JPEG files to pixels on the GPU: nvJPEG by TorchCodec or torchvision.

nvJPEG uses the JPEG engine of GPUs that have one (A100, H100, H200 ...), else the GPU's
cores and the host's. Whole batches are decoded in one call.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout_train.images.decoding import Box

AT_ONCE = 2**30
"""Most bytes of decoded pixels per call: batches of large photographs are decoded in parts."""
TRIED = 64
"""Files in the batch on which the rate is measured."""

DecodeTogether = Callable[[list[Tensor]], list[Tensor]]
"""Files as uint8 [bytes] on the host -> uint8 [3, height, width] each on the device, in order."""


@dataclass(frozen=True)
class DeviceDecoder:
    """Decodes plain JPEG files together; raises an error for all where one of them is corrupt."""

    name: str
    decode: DecodeTogether


class DecodedPicture:
    """A decoded picture, uint8 [3, height, width]."""

    def __init__(self, pixels: Tensor) -> None:
        self._pixels = pixels
        self.height, self.width = pixels.shape[1], pixels.shape[2]

    def region(self, box: Box | None, scale: float) -> Tensor:
        pixels = self._pixels.permute(1, 2, 0)
        if box is None:
            return pixels
        left, top, width, height = box
        return pixels[top : top + height, left : left + width]


def candidates(device: torch.device) -> list[DeviceDecoder]:
    """The installed decoders that work with this device."""
    if device.type != "cuda":
        return []
    decoders = ((name, _decode_if_usable(make, device)) for name, make in _MAKERS.items())
    return [DeviceDecoder(name, decode) for name, decode in decoders if decode is not None]


def _decode_if_usable(make: Callable[..., DecodeTogether], device: torch.device) -> Any:
    try:
        return make(device)
    except Exception:  # not installed, or built without CUDA, or for another torch
        return None


def rate(decoder: DeviceDecoder, samples: Sequence[bytes], wait: Callable[[], None]) -> float:
    """Pictures per second, the best of several batches; 0 where it fails. `wait` synchronises."""
    if not samples:
        return 0.0
    files = [
        torch.frombuffer(bytearray(samples[place % len(samples)]), dtype=torch.uint8)
        for place in range(TRIED)
    ]
    best = math.inf
    try:
        for _ in range(4):  # the first one starts the library
            begin = time.perf_counter()
            decoder.decode(files)
            wait()
            best = min(best, time.perf_counter() - begin)
    except Exception:
        return 0.0
    return TRIED / best


def parts(pixels: Sequence[int], limit: int = AT_ONCE) -> list[range]:
    """Consecutive parts of a batch with at most `limit` bytes of pixels each, or one picture."""
    ranges, begin, size = [], 0, 0
    for place, count in enumerate(pixels):
        if size and size + 3 * count > limit:
            ranges.append(range(begin, place))
            begin, size = place, 0
        size += 3 * count
    if begin < len(pixels):
        ranges.append(range(begin, len(pixels)))
    return ranges


def _torchcodec(device: torch.device) -> DecodeTogether:
    decode_jpeg = importlib.import_module("torchcodec.decoders").decode_jpeg
    return _after_others(device, lambda files: decode_jpeg(files, mode="RGB", device=device))


def _torchvision(device: torch.device) -> DecodeTogether:
    package = importlib.import_module("torchvision.io")
    mode = package.ImageReadMode.RGB
    return _after_others(device, lambda files: package.decode_jpeg(files, mode, device))


def _after_others(device: torch.device, decode: Callable[..., Any]) -> DecodeTogether:
    """Synchronise first: the libraries write on their own stream to memory still in use here."""

    def together(files: list[Tensor]) -> list[Tensor]:
        torch.cuda.current_stream(device).synchronize()
        return list(decode(files))

    return together


_MAKERS: dict[str, Callable[..., DecodeTogether]] = {
    "torchcodec:cuda": _torchcodec,
    "torchvision:cuda": _torchvision,
}
