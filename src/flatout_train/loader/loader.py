"""`loader()`: torch's DataLoader with chosen settings, resumable at the exact sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from flatout_train.loader.arguments import Settings, target_of
from flatout_train.loader.epochs import EpochLoader
from flatout_train.loader.fetching import Collate
from flatout_train.loader.sources import IndexedSource, StreamSource


def loader(
    dataset: Any,
    batch_size: int,
    *,
    shuffle: bool = False,
    device: torch.device | str = "auto",
    workers: int | str = "auto",
    seed: int = 0,
    drop_last: bool = False,
    collate: Collate | None = None,
    sampler: Iterable[Any] | None = None,
    prefetch: int = 2,
) -> Loader:
    """Batches of `dataset`, loaded ahead of time and already on the device.

    Iterate it once per epoch; the next pass is the next epoch. `state_dict()` and
    `load_state_dict()` resume at the exact sample, with bit-identical batches, whatever the
    number of workers. If `torch.distributed` is initialised, each rank gets its share of every
    epoch, in the same number of batches. `Loader` documents the arguments.

    Raises UsageError for invalid arguments, such as an empty data set. An error in the data set
    passes through, with a note that names the index.
    """
    given = {**locals(), "device": target_of(device)}
    return Loader(Settings(**given))


class Loader(EpochLoader):
    """Result of `flatout.loader`. `len()`: batches per epoch, for this rank.

    `notes` says what was chosen and why: "workers", "distributed". `device` is the device of the
    batches. They are loaded by `torch.utils.data.DataLoader`. The arguments of `flatout.loader`:

    - `dataset`: map-style (`dataset[i]` and `len(dataset)`), iterable-style, a `TensorDataset`, a
      tensor or NumPy array of samples, or a tuple or dict of them. Tensors and arrays are batched
      by indexing, with no Python code per sample and no workers, on the device that they are on;
      with `collate`, a sample is what `dataset[i]` gives. A data set with `__getitems__` is asked
      for whole batches.
    - `batch_size`: samples per batch of this process.
    - `shuffle`: a different order in each epoch, a function of (seed, epoch).
    - `device`: "auto" is `flatout.device()`. On CUDA, ROCm and XPU a batch is copied from pinned
      memory on a side stream, while the one before it is in use.
    - `workers`: number of loading processes, which stay for the next pass. "auto": as many as the
      cost of the first batch requires and the cores available to this process allow; none if
      samples are cheap, or if a worker could not use the data set. An iterable data set gets at
      most one unless you request more: it must then split itself among workers.
    - `seed`: seed of the order and of all random numbers in loading. Each batch is loaded under its
      own seed, derived from (seed, epoch, position, rank), for torch, `random`, NumPy and the
      generators in the data set: random augmentation is the same for any number of workers, and
      the program's own random numbers are not affected.
    - `drop_last`: drop the last batch of an epoch when it is short.
    - `collate`: list of samples -> batch, or None for torch's `default_collate`.
    - `sampler`: yields indices, instead of `shuffle`. Every rank draws the same indices and takes
      its share; a `DistributedSampler` gives each rank its own. A `torch.Generator` in it is
      reseeded in each epoch.
    - `prefetch`: batches that each worker loads ahead.

    A pass that was interrupted is followed by the next epoch, but `state_dict()` still holds its
    position: loading it resumes in the middle. An iterable data set is resumed by its own
    `state_dict` if it has one and there are no workers, else by reading again what came before.
    With workers, torch reseeds each of them in each epoch, so its random numbers are the same only
    with the same number of workers.
    """

    def __init__(self, settings: Settings) -> None:
        notes: dict[str, str] = {}
        kind = StreamSource if settings.stream else IndexedSource
        super().__init__(kind(settings, notes), settings.device, settings.seed)
        self.notes = notes
