"""The arguments of `image_loader`, checked and converted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flatout_train.devices import device as best_device
from flatout_train.errors import UsageError
from flatout_train.images import augmenting
from flatout_train.images import folder as image_folder
from flatout_train.images.augmenting import Augment, Cuts, Normalise
from flatout_train.images.folder import ImageFiles, Labels
from flatout_train.loader.sampling import IndexOrder, world


@dataclass(frozen=True)
class ImageSettings:
    """The pictures, their order, the operations on each, and how they are loaded."""

    pictures: ImageFiles
    order: IndexOrder
    cuts: Cuts
    normalise: Normalise
    device: torch.device
    workers: int | None
    cache: str | bool
    decoder: str
    replace: bool
    """Whether a corrupt picture is replaced by another; else it is dropped."""
    prefetch: int


def settings(
    folder: str | os.PathLike[str],
    batch_size: int,
    size: int,
    train: bool,
    device: torch.device | str,
    workers: int | str,
    seed: int,
    augment: Augment,
    color_jitter: float | Sequence[float],
    cache: str | bool,
    decoder: str,
    labels: Labels | None,
    classes: Sequence[str] | None,
    drop_last: bool | None,
    resize: int | None,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype,
    prefetch: int,
) -> ImageSettings:
    """Settings from the arguments of `image_loader`; UsageError for invalid ones."""
    _check(batch_size, workers, prefetch, dtype)
    cuts = augmenting.choose(augment, size, resize, train, color_jitter)
    pictures = image_folder.find(folder, labels, classes)
    target = best_device() if device == "auto" else torch.device(device)
    short = drop_last if drop_last is not None else train
    order = IndexOrder(len(pictures), batch_size, shuffle=train, seed=seed, drop_last=short)
    if order.batches(world()) == 0:
        raise UsageError(
            f"image_loader: {len(pictures)} pictures are fewer than one batch of {batch_size} for "
            f"each of {world().size} processes; pass a smaller batch_size, or drop_last=False."
        )
    normalise = Normalise(mean, std, target, dtype)
    number = workers if isinstance(workers, int) else None
    return ImageSettings(
        pictures, order, cuts, normalise, target, number, cache, decoder, train, prefetch
    )


def _check(batch_size: int, workers: int | str, prefetch: int, dtype: torch.dtype) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"image_loader: batch_size={batch_size!r} must be a number of at least 1.")
    if workers != "auto" and (not isinstance(workers, int) or workers < 0):
        raise UsageError(f"image_loader: workers={workers!r} must be 'auto' or a number from 0.")
    if prefetch < 0:
        raise UsageError(f"image_loader: prefetch={prefetch!r} must be at least 0.")
    if not dtype.is_floating_point:
        raise UsageError(f"image_loader: dtype={dtype} must be a floating-point type.")
