"""The arguments of `loader()`, checked: each error names the argument and the fix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from flatout_train.devices import device as working_device
from flatout_train.errors import UsageError
from flatout_train.loader.copying import PINNED_FOR
from flatout_train.loader.fetching import Collate


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `flatout.loader`; UsageError for one that cannot be."""

    dataset: Any
    batch_size: int
    shuffle: bool
    device: torch.device
    workers: int | str
    seed: int
    drop_last: bool
    collate: Collate | None
    sampler: Iterable[Any] | None
    prefetch: int

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_dataset(self)
        _check_combinations(self)

    @property
    def pin(self) -> bool:
        """Whether batches are copied to the device from pinned memory."""
        return self.device.type in PINNED_FOR

    @property
    def stream(self) -> bool:
        """Whether the data set is iterable, without an index."""
        return isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__")


def target_of(device: torch.device | str) -> torch.device:
    """The device that an argument names, with its index; UsageError if there is none."""
    if device == "auto":
        return working_device()
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise UsageError(
            f"device={device!r} is not a device ({str(error).splitlines()[0]}): pass 'auto', or a "
            "name such as 'cuda:0'"
        ) from error
    if target.index is None and target.type in (*PINNED_FOR, "mps"):
        return torch.device(target.type, _index(target))
    return target


def _index(target: torch.device) -> int:
    if target.type == "mps":
        return 0
    try:
        return int(torch.get_device_module(target).current_device())
    except (AssertionError, RuntimeError) as error:
        first = str(error).strip().splitlines()[:1]
        raise UsageError(
            f"device={target.type!r} cannot be used: {''.join(first)}. Pass device='auto' for a "
            "device that works"
        ) from error


def _check_numbers(settings: Settings) -> None:
    for name, least in (("batch_size", 1), ("prefetch", 0)):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name} is {value!r}: pass a whole number of at least {least}")
    workers = settings.workers
    counted = isinstance(workers, int) and not isinstance(workers, bool) and workers >= 0
    if workers != "auto" and not counted:
        raise UsageError(f"workers is {workers!r}: pass 'auto' or a number of processes, 0 or more")
    if isinstance(settings.seed, bool) or not isinstance(settings.seed, int):
        raise UsageError(f"seed is {settings.seed!r}: pass a whole number")


def _check_dataset(settings: Settings) -> None:
    dataset = settings.dataset
    if isinstance(dataset, DataLoader):
        raise UsageError("the data set is a DataLoader: pass the data set itself, loader.dataset")
    if hasattr(dataset, "__next__"):
        raise UsageError(
            f"{type(dataset).__name__} is an iterator, which can be read only once: pass a list, a "
            "tensor, or an IterableDataset whose __iter__ starts again"
        )
    if settings.stream:
        if not hasattr(dataset, "__iter__"):
            raise UsageError(
                f"{type(dataset).__name__} is not a data set: add __getitem__ and __len__, or "
                "__iter__"
            )
        return
    if settings.sampler is not None and not hasattr(dataset, "__len__"):
        return
    try:
        len(dataset)
    except TypeError as error:
        raise UsageError(
            f"the data set {type(dataset).__name__} has no length: add a __len__, or make it an "
            "IterableDataset"
        ) from error


def _check_combinations(settings: Settings) -> None:
    if settings.sampler is not None and settings.shuffle:
        raise UsageError("sampler and shuffle both choose the order: pass only one of them")
    if settings.stream and (settings.shuffle or settings.sampler is not None):
        name = "shuffle" if settings.shuffle else "sampler"
        raise UsageError(
            f"{name} needs a data set with an index, but an iterable data set has its own order: "
            f"leave {name} out"
        )
