"""Pixels from files of every kind, against Pillow's own; what is broken is named."""

from __future__ import annotations

import importlib
import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from flatout_train.errors import UsageError
from flatout_train.images import decoding, jpeg_header
from flatout_train.images.decoding import CorruptError, PillowPicture
from train.images.pictures import encoded, picture

ORIENTATION = 0x0112


def pixels(image: Image.Image) -> torch.Tensor:
    rgb = image.convert("RGB")
    flat = torch.frombuffer(bytearray(rgb.tobytes()), dtype=torch.uint8)
    return flat.view(rgb.height, rgb.width, 3)


def decoded(data: bytes) -> torch.Tensor:
    return PillowPicture(data).region(None, 1.0)


def far(a: torch.Tensor, b: torch.Tensor) -> int:
    assert a.shape == b.shape
    return int((a.int() - b.int()).abs().max())


def turned(image: Image.Image, orientation: int, kind: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(image, kind, exif=exif)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF"])
def test_formats_without_loss_come_out_as_they_are(kind: str) -> None:
    image = picture(1).quantize(64) if kind == "GIF" else picture(1)
    options = {"lossless": True} if kind == "WEBP" else {}
    assert torch.equal(decoded(encoded(image, kind, **options)), pixels(image))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "YCbCr"])
def test_all_colours_become_rgb(mode: str) -> None:
    image = picture(2).convert(mode)
    kind = {"CMYK": "TIFF", "YCbCr": "TIFF"}.get(mode, "PNG")
    assert far(decoded(encoded(image, kind)), pixels(image)) <= 1


def test_cmyk_and_grey_jpeg_files() -> None:
    for image in (picture(3).convert("CMYK"), picture(3).convert("L")):
        data = encoded(image)
        assert torch.equal(decoded(data), pixels(Image.open(io.BytesIO(data))))


def test_sixteen_bits_keep_their_upper_eight() -> None:
    values = torch.arange(0, 65536, 64, dtype=torch.int32).view(32, 32)
    low = bytes((values & 255).to(torch.uint8).reshape(-1).tolist())
    high = bytes((values >> 8).to(torch.uint8).reshape(-1).tolist())
    raw = bytes(byte for pair in zip(low, high, strict=True) for byte in pair)
    image = Image.frombytes("I;16", (32, 32), raw)
    assert torch.equal(decoded(encoded(image, "PNG"))[..., 0].int(), values >> 8)


def test_of_an_animation_the_first_frame_counts() -> None:
    frames = [picture(number).quantize(64) for number in (4, 5)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert torch.equal(decoded(buffer.getvalue()), pixels(frames[0]))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_picture_upright(orientation: int, kind: str) -> None:
    data = turned(picture(6, 48, 32), orientation, kind)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    opened = PillowPicture(data)
    assert (opened.width, opened.height) == upright.size
    assert torch.equal(opened.region(None, 1.0), pixels(upright))
    box = (5, 3, 11, 13)
    assert torch.equal(opened.region(box, 1.0), pixels(upright)[3:16, 5:16])
    if kind == "JPEG":
        header = jpeg_header.read(data)
        assert header is not None
        assert (header.orientation, header.plain) == (orientation, orientation == 1)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_at_any_scale_there_are_enough_pixels(options: dict[str, Any]) -> None:
    data = encoded(picture(7, 203, 151), **options)
    for scale in (1.0, 0.6, 0.5, 0.3, 0.25, 0.1):
        found = PillowPicture(data).region(None, scale)
        assert found.shape[0] >= 151 * scale and found.shape[1] >= 203 * scale


def test_scaled_decoding_takes_the_smallest_that_is_large_enough() -> None:
    data = encoded(picture(8, 160, 80))
    shapes = {
        scale: tuple(PillowPicture(data).region(None, scale).shape[:2])
        for scale in (1.0, 0.51, 0.5, 0.26, 0.25, 0.13, 0.125, 0.01)
    }
    assert shapes == {
        1.0: (80, 160), 0.51: (80, 160), 0.5: (40, 80), 0.26: (40, 80),
        0.25: (20, 40), 0.13: (20, 40), 0.125: (10, 20), 0.01: (10, 20),
    }  # fmt: skip


@pytest.mark.slow
def test_a_region_is_the_same_part_at_every_scale() -> None:
    image = picture(9, 320, 240)
    data = encoded(image)
    whole = PillowPicture(data).region((64, 32, 128, 160), 1.0)
    assert far(whole, pixels(Image.open(io.BytesIO(data)))[32:192, 64:192]) == 0
    half = PillowPicture(data).region((64, 32, 128, 160), 0.5)
    assert half.shape == (80, 64, 3)
    averaged = whole.float().view(80, 2, 64, 2, 3).mean((1, 3))
    assert float((half.float() - averaged).abs().max()) < 6


JPEG = encoded(picture(10, 64, 64))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"no picture at all\n", "not a picture"),
        (JPEG[: len(JPEG) // 2], "truncated"),
        (JPEG[:3], "not a picture"),
    ],
)
def test_what_is_broken_is_told(data: bytes, reason: str) -> None:
    with pytest.raises((CorruptError, OSError), match=reason):
        PillowPicture(data).region(None, 1.0)


def test_bombs_are_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_PIXELS", 64 * 64 - 1)
    for data in (JPEG, encoded(picture(1, 64, 64), "PNG")):
        with pytest.raises(CorruptError, match=r"64 x 64 pixels: .* bomb"):
            PillowPicture(data)


def test_a_broken_exif_block_does_not_spoil_the_picture() -> None:
    whole = turned(picture(6), 6)
    place = whole.index(b"Exif\0\0") + 6
    data = whole[:place] + bytes(range(7, 27)) + whole[place + 20 :]
    upright = PillowPicture(encoded(picture(6))).region(None, 1.0)
    assert far(PillowPicture(data).region(None, 1.0), upright) == 0


def test_truncated_pictures_of_other_formats_fail_when_decoded() -> None:
    data = encoded(picture(1, 64, 64), "PNG")
    with pytest.raises(Exception, match=r"truncated|Truncated"):
        PillowPicture(data[: len(data) // 2]).region(None, 1.0)


@given(cut=st.integers(0, len(JPEG)), noise=st.binary(max_size=40), at=st.integers(0, len(JPEG)))
def test_the_header_of_any_bytes_is_read_without_an_error(cut: int, noise: bytes, at: int) -> None:
    jpeg_header.read(noise)
    broken = JPEG[:at] + noise + JPEG[at + len(noise) :]
    for data in (JPEG[:cut], broken, broken[:cut], JPEG[:2] + noise):
        header = jpeg_header.read(data)
        if header is not None:
            assert header.width > 0 and header.height > 0


@pytest.mark.slow
@given(width=st.integers(1, 90), height=st.integers(1, 90), orientation=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_the_header_says_what_was_written(width: int, height: int, orientation: int) -> None:
    header = jpeg_header.read(turned(picture(1, width, height), orientation))
    assert header == jpeg_header.Header(width, height, 3, 8, orientation, True)
    trailing = jpeg_header.read(turned(picture(1, width, height), orientation) + b"trailing")
    assert trailing == header


@given(
    box=st.tuples(*[st.integers(0, 50)] * 2, *[st.integers(1, 50)] * 2),
    x=st.sampled_from((1, 1 / 2, 1 / 4, 1 / 8, 0.3)),
)
def test_a_scaled_box_covers_the_region_and_at_least_one_pixel(
    box: tuple[int, int, int, int], x: float
) -> None:
    left, top, right, bottom = decoding.scaled(box, x, x)
    assert left <= box[0] * x < left + 1 and top <= box[1] * x < top + 1
    assert right > left and bottom > top
    assert right - 1 <= (box[0] + box[2]) * x <= right + 1e-6


def test_without_pillow_the_cure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match="pip install pillow"):
        PillowPicture(JPEG)
