"""Folders of pictures to load: smooth ones, drawn from numbers, so that resizing is comparable."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import torch
from PIL import Image


def picture(number: int, width: int = 48, height: int = 40) -> Image.Image:
    """Waves of colour, other ones for each number."""
    y = torch.linspace(0, 1, height)[:, None, None]
    x = torch.linspace(0, 1, width)[None, :, None]
    channel = torch.arange(3)[None, None, :]
    waves = torch.sin(2 * math.pi * (x * (1 + number % 3) + y * (1 + channel) / 2) + number)
    pixels = (127.5 + 127.5 * waves).round().to(torch.uint8).contiguous()
    return Image.frombytes("RGB", (width, height), bytes(pixels.untyped_storage()))


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    if kind == "JPEG":
        options.setdefault("quality", 95)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def folder(root: Path, classes: int = 3, each: int = 4, **size: int) -> Path:
    """`each` JPEG files in every class folder, c0/0.jpg and so on."""
    for number in range(classes * each):
        place = root / f"c{number // each}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number % each}.jpg").write_bytes(encoded(picture(number, **size)))
    return root


def reference(image: Image.Image, size: int, resize: int) -> torch.Tensor:
    """`Resize(resize)` and `CenterCrop(size)` as torchvision does them with Pillow: [h, w, 3]."""
    width, height = image.size
    if width <= height:
        w, h = resize, int(resize * height / width)
    else:
        w, h = int(resize * width / height), resize
    left, top = round((w - size) / 2), round((h - size) / 2)
    done = image.resize((w, h), Image.Resampling.BILINEAR)
    done = done.crop((left, top, left + size, top + size))
    flat = torch.frombuffer(bytearray(done.tobytes()), dtype=torch.uint8)
    return flat.view(size, size, 3)
