"""The two photographs that scikit-learn brings along, without its import, which takes seconds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from PIL import Image


def photographs() -> list[Image.Image]:
    """A temple in China and a flower, each 640 x 427, RGB."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "datasets/images"
    return [Image.open(folder / name).convert("RGB") for name in ("china.jpg", "flower.jpg")]
