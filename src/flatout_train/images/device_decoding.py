"""From JPEG files to pixels on the GPU: nvJPEG by torchvision.

nvJPEG uses the JPEG engine of GPUs that have one (A100, H100, H200 ...), else the GPU's
cores and the host's. Whole batches are decoded in one call.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


def installed(device: torch.device) -> DeviceDecoder | None:
    """The decoder for this device, or None if there is none that works."""
    if device.type != "cuda":
        return None
    try:
        return DeviceDecoder("torchvision:cuda", _torchvision(device))
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


def _torchvision(device: torch.device) -> DecodeTogether:
    package = importlib.import_module("torchvision.io")
    mode = package.ImageReadMode.RGB

    def together(files: list[Tensor]) -> list[Tensor]:
        # nvJPEG writes on a stream of its own to memory that is still in use here.
        torch.cuda.current_stream(device).synchronize()
        return list(package.decode_jpeg(files, mode, device))

    return together
