"""Decoding on a device: what is called and how; the real thing where there is a GPU."""

from __future__ import annotations

import contextlib
import io
import sys
import types
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from flatout_train.images import device_decoding
from flatout_train.images.decoding import PillowPicture
from flatout_train.images.device_decoding import DeviceDecoder
from train.images.pictures import encoded, picture

CUDA = torch.device("cuda", 0)
FILES = [encoded(picture(number, 60 + number, 50)) for number in range(5)]
TENSORS = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in FILES]


def plain(data: bytes) -> Tensor:
    """uint8 [3, h, w]"""
    return PillowPicture(data).region(None, 1.0).permute(2, 0, 1)


def repeated(data: bytes) -> Tensor:
    """As `plain`, but each colour value of a JPEG file (one for 2x2 pixels) repeated over them, as
    nvJPEG does; libjpeg interpolates.
    """
    whole, half = (Image.open(io.BytesIO(data)) for _ in range(2))
    width, height = whole.size
    whole.draft("YCbCr", None)
    half.draft("YCbCr", (width // 2, height // 2))  # colours are not scaled: they have this size
    colours = channels(half)[1:].repeat_interleave(2, 1).repeat_interleave(2, 2)
    bright, (blue, red) = channels(whole)[0], colours[:, :height, :width] - 128
    rows = (bright + 1.402 * red, bright - 0.344136 * blue - 0.714136 * red, bright + 1.772 * blue)
    return torch.stack(rows).round().clamp(0, 255).to(torch.uint8)


def channels(image: Image.Image) -> Tensor:
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.size[1], image.size[0], 3).permute(2, 0, 1).float()


def far(one: Tensor, other: Tensor) -> int:
    return int((one.int() - other.int()).abs().max())


def modules(monkeypatch: pytest.MonkeyPatch, **members: dict[str, Any]) -> None:
    for name, inside in members.items():
        module = types.ModuleType(name.replace("__", "."))
        vars(module).update(inside)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_nvjpeg_gets_the_whole_batch_after_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    class Stream:
        def synchronize(self) -> None:
            done.append("waited")

    def decode_jpeg(files: list[Tensor], mode: Any, device: torch.device) -> list[Tensor]:
        done.append((len(files), mode, device))
        return [plain(bytes(one.tolist())) for one in files]

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    mode: Any = types.SimpleNamespace(RGB="rgb mode")
    modules(monkeypatch, torchvision={}, torchvision__io={
        "decode_jpeg": decode_jpeg, "ImageReadMode": mode,
    })  # fmt: skip
    found = device_decoding.installed(CUDA)
    assert found is not None
    assert found.name == "torchvision:cuda"
    pixels = found.decode(TENSORS)
    assert done == ["waited", (5, "rgb mode", CUDA)]
    assert all(torch.equal(a, plain(b)) for a, b in zip(pixels, FILES, strict=True))


@given(sizes=st.lists(st.integers(1, 100), max_size=30), limit=st.integers(1, 600))
def test_large_batches_are_decoded_in_parts(sizes: list[int], limit: int) -> None:
    parts = device_decoding.parts(sizes, limit)
    assert [place for part in parts for place in part] == list(range(len(sizes)))
    for part in parts:
        assert len(part) == 1 or sum(3 * sizes[place] for place in part) <= limit


def test_rates_are_measured_and_a_decoder_that_fails_has_none() -> None:
    def fails(files: list[Tensor]) -> list[Tensor]:
        raise RuntimeError("no")

    works = DeviceDecoder("works", lambda files: files)
    assert device_decoding.rate(works, FILES, lambda: None) > 0
    assert device_decoding.rate(works, [], lambda: None) == 0
    assert device_decoding.rate(DeviceDecoder("fails", fails), FILES, lambda: None) == 0


def test_on_the_cpu_there_is_no_device_decoder() -> None:
    assert device_decoding.installed(torch.device("cpu")) is None


def test_nvjpegs_pixels_are_those_of_repeated_colours() -> None:
    """The corners of blue in the first file, as nvJPEG gave them on an H200."""
    blue = repeated(FILES[0])[2]
    assert blue[-2:, :3].tolist() == [[129, 131, 105], [132, 134, 109]]
    assert blue[-2:, -3:].tolist() == [[169, 144, 146], [174, 149, 151]]
    assert far(repeated(FILES[0]), plain(FILES[0])) == 25


@pytest.mark.gpu
def test_the_device_agrees_with_pillow_but_for_the_smoothing_of_colours() -> None:
    decoder = device_decoding.installed(CUDA)
    if decoder is None:
        pytest.skip("no decoder for the device is installed")
    for one, out in zip(FILES, decoder.decode(TENSORS), strict=True):
        assert out.device.type == "cuda" and out.dtype == torch.uint8
        assert min(far(out.cpu(), plain(one)), far(out.cpu(), repeated(one))) <= 2
    with contextlib.suppress(Exception):
        decoder.decode([TENSORS[0], torch.zeros(100, dtype=torch.uint8)])
        pytest.fail("what is no JPEG file was decoded")
    assert len(decoder.decode(TENSORS[:2])) == 2
    assert device_decoding.rate(decoder, FILES, torch.cuda.synchronize) > 0
