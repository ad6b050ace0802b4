"""Decoding JPEG pictures on one core, the input of an image model, with each decoder installed
here.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import stopwatch
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice
from flatout_programs.kernels.timing import Clock, median_s

WIDTH, HEIGHT = 500, 375
"""The usual size of ImageNet's pictures."""
PICTURES = 8
QUALITY = 90
Decode = Callable[[bytes], Any]


def kernels(setup: Setup) -> list[CeilingKernel]:
    """One kernel, on one core, since loaders' workers have one each."""
    decoders = installed_decoders(setup.torch)
    impossible = (
        "" if decoders else "neither Pillow nor torchvision is installed: pip install pillow"
    )
    return [
        CeilingKernel(
            "jpeg-decode-core",
            f"JPEG {WIDTH}x{HEIGHT}, one core",
            "cpu",
            "images/s",
            partial(rates, setup, decoders),
            impossible=impossible,
        )
    ]


def installed_decoders(torch: Any) -> dict[str, Decode]:
    """The importable decoders, by name."""
    decoders: dict[str, Decode] = {}
    try:
        image = importlib.import_module("PIL.Image")
        decoders["Pillow"] = lambda data: image.open(io.BytesIO(data)).convert("RGB")
    except ImportError:
        pass
    try:
        decode = importlib.import_module("torchvision.io").decode_jpeg
        decode(torch.frombuffer(bytearray(encoded(torch, 16, 16, 0)), dtype=torch.uint8))
        decoders["torchvision"] = lambda data: decode(
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
        )
    except (ImportError, RuntimeError, AttributeError):  # built without libjpeg
        pass
    return decoders


def rates(setup: Setup, decoders: dict[str, Decode], time_slice: Slice) -> Iterator[Point]:
    """Images per second of each decoder, on one thread."""
    torch = setup.torch
    with stopwatch.preparing():
        pictures = [encoded(torch, WIDTH, HEIGHT, seed) for seed in range(PICTURES)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for index, (name, decode) in enumerate(decoders.items()):
            budget_s = max(time_slice.remaining_s() / (len(decoders) - index), 0.05)
            action = partial(_decode, decode, pictures)
            yield name, 1 / median_s(Clock(torch, "cpu"), action, budget_s)
    finally:
        torch.set_num_threads(before)


def _decode(decode: Decode, pictures: list[bytes], call: int) -> None:
    decode(pictures[call % len(pictures)])


def encoded(torch: Any, width: int, height: int, seed: int) -> bytes:
    """A picture with large shapes, edges and some grain, about as many bytes as a photograph."""
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.rand(1, 3, max(height // 24, 2), max(width // 24, 2), generator=generator)
    whole = torch.nn.functional.interpolate(shapes, (height, width), mode="bilinear")[0]
    grain = torch.randn(3, height, width, generator=generator) * 0.03
    values = ((whole + grain).clamp(0, 1) * 255).to(torch.uint8)
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError:
        encode = importlib.import_module("torchvision.io").encode_jpeg
        return bytes(encode(values, quality=QUALITY).tolist())
    data = bytes(values.permute(1, 2, 0).contiguous().flatten().tolist())
    file = io.BytesIO()
    image.frombytes("RGB", (width, height), data).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
