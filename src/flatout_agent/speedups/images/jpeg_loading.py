"""Loaders of programs that open JPEG files with Pillow, and how images are left undecoded.

image-cache changes Pillow's class for JPEG files in the main process. Loader workers forked
afterwards have the change as well.
"""

from __future__ import annotations

import importlib
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.workers.fresh_workers import why_not_fresh
from flatout_agent.speedups.workers.reachable import globals_named

if TYPE_CHECKING:
    import torch


def why_not(loader: torch.utils.data.DataLoader[Any]) -> str | None:
    """Why a change in this process would not affect this loader, or None if it would."""
    reason = why_not_fresh(loader)
    if reason is not None:
        return reason
    if jpeg_plugin(loader) is None:
        return "the dataset does not open images with Pillow, as far as can be seen"
    return None


def jpeg_plugin(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """Pillow's module for JPEG files, or None if the program does not seem to use it."""
    name = "PIL.JpegImagePlugin"
    if name not in sys.modules and not _names_pillow(loader):
        return None
    try:
        plugin = importlib.import_module(name)
        attributes = vars(importlib.import_module("PIL.Image").Image())
    except Exception:  # not installed, or without its compiled part
        return None
    # Since Pillow 10.1 these two are plain attributes behind read-only properties.
    return plugin if {"_mode", "_size"} <= attributes.keys() else None


def _names_pillow(loader: torch.utils.data.DataLoader[Any]) -> bool:
    """Whether the loading code names Pillow or anything from it."""
    named = globals_named(loader.dataset, loader.collate_fn)
    return any(name == "PIL" or _of_pillow(value) for name, value in named)


def _of_pillow(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] == "PIL"
    if isinstance(value, type | types.FunctionType):
        return str(value.__module__).partition(".")[0] == "PIL"
    return False


class Later:
    """Replaces the `load` of one image, as if it had been decoded already.

    It is an attribute of that image, and so outlasts the boost. As long as it is there, nothing has
    read or written the pixels.
    """

    def __init__(
        self,
        image: Any,
        source: Any,
        pixels: Callable[[Any], Any] | None,
        key: bytes | None = None,
    ) -> None:
        """`pixels`: called with the image if they are needed after all; returns Pillow's core
        image. None if the image has them.

        key: the identity of the pixels, or None if they have none.
        """
        self._image, self._pixels = weakref.ref(image), pixels
        self.source, self.key = source, key

    def __call__(self) -> Any:
        image: Any = self._image()
        parts = vars(image)
        missing = parts.get("_im", parts.get("im")) is None  # neither decoded nor closed
        if missing and self._pixels is not None:
            image.im = self._pixels(image)
        parts.pop("load", None)
        return image.load()


def postpone(
    image: Any, source: Any, pixels: Callable[[Any], Any], key: bytes | None = None
) -> None:
    """Leave the image of a file as `load` does, except for its pixels. Arguments as for `Later`."""
    if image._exclusive_fp and image.fp is not None:
        image.fp.close()
    image.fp, image.tile, image.readonly = None, [], 0
    vars(image)["load"] = Later(image, source, pixels, key)


def copy_of_info(image: Any) -> dict[Any, Any]:
    """A copy of it, made as Pillow does from one image to the next."""
    copy = getattr(image, "_copy_info", None)  # newer versions copy lists as well
    return copy() if copy is not None else image.info.copy()  # type: ignore[no-any-return]
