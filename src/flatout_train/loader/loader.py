"""`loader()`: torch's DataLoader with chosen settings, resumable at the exact sample."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import torch

from flatout_train.errors import UsageError
from flatout_train.loader import sampling
from flatout_train.loader.arguments import Settings, settings
from flatout_train.loader.copying import on_device
from flatout_train.loader.fetching import Collate
from flatout_train.loader.sources import BatchMark, BatchSource, IndexedSource, StreamSource

VERSION = 2


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
    plan: Any = None,
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
    return Loader(settings(**locals()))


class Loader:
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
    - `plan`: a `flatout.toml`; its settings apply to arguments that are left at their defaults.
    - `prefetch`: batches that each worker loads ahead.

    A pass that was interrupted is followed by the next epoch, but `state_dict()` still holds its
    position: loading it resumes in the middle. An iterable data set is resumed by its own
    `state_dict` if it has one and there are no workers, else by reading again what came before.
    With workers, torch reseeds each of them in each epoch, so its random numbers are the same only
    with the same number of workers.
    """

    def __init__(self, settings: Settings) -> None:
        self.device, self.seed = settings.device, settings.seed
        self.notes: dict[str, str] = {}
        kind = StreamSource if settings.stream else IndexedSource
        self._source: BatchSource = kind(settings, self.notes)
        self._epoch = 0
        self._mark: BatchMark | None = None
        self._fresh = True
        """Whether the next pass is of `_epoch`, after `_mark`; else a pass of it has begun."""
        self._passes = 0
        self._batches: weakref.ref[Generator[Any, None, None]] | None = None
        """The batches of the last pass; a weak reference, as a dropped pass releases its
        workers."""

    @property
    def epoch(self) -> int:
        """The epoch of the next batch: `for epoch in range(loader.epoch, epochs)` resumes."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass start this epoch.

        If a loaded state is in the middle of this epoch, the pass resumes there: a loop that calls
        `set_epoch(epoch)` before each pass resumes without a change.
        """
        if not (self._fresh and epoch == self._epoch):
            self._go_to(epoch, None)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that were yielded; any number of ranks can load it.

        Only numbers, strings, lists and dicts, apart from an iterable data set's own state. The
        same on every rank, except with iterable data sets.
        """
        return {
            "version": VERSION,
            "epoch": self._epoch,
            "mark": self._mark,
            "seed": self.seed,
            "order": self._source.identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume with the batch that follows those of `state`, as if without interruption.

        Raises UsageError if it is the state of another data set, order or seed.
        """
        version = state.get("version")
        if version != VERSION:
            raise UsageError(
                f"the loader's state has version {version!r}, this flatout reads {VERSION}: load "
                "it with the version of flatout that wrote it"
            )
        ours = {"seed": self.seed, **self._source.identity()}
        theirs = {"seed": state["seed"], **state["order"]}
        different = [name for name in ours if ours[name] != theirs.get(name)]
        if different:
            name = different[0]
            raise UsageError(
                f"the loader's state belongs to another order: {name} was {theirs.get(name)!r}, "
                f"now it is {ours[name]!r}. Create the loader with the same data set and arguments"
            )
        self._go_to(int(state["epoch"]), state["mark"])

    def _go_to(self, epoch: int, mark: BatchMark | None) -> None:
        self._epoch, self._mark, self._fresh = epoch, mark, True
        self._passes += 1  # ends the current pass

    def __len__(self) -> int:
        return self._source.length(sampling.world())

    def __iter__(self) -> Iterator[Any]:
        if not self._fresh:
            self._go_to(self._epoch + 1, None)
        self._passes += 1
        return self._pass(self._epoch, self._mark, self._passes)

    def _pass(self, epoch: int, mark: BatchMark | None, number: int) -> Iterator[Any]:
        """One epoch's batches after `mark`; the loader's state counts those that were yielded."""
        world = sampling.world()
        batches = on_device(self._source.batches(epoch, mark, world), self.device)
        self._batches = weakref.ref(batches)
        while True:
            if self._passes != number:
                raise UsageError(
                    "this pass ended when the loader began another pass or its position was "
                    "changed: a loader makes one pass at a time; create a second loader for "
                    "concurrent passes"
                )
            marked = next(batches, None)
            if marked is None:
                break
            batch, mark = marked
            if not self._source.left(mark, world):
                self._epoch, self._mark, self._fresh = epoch + 1, None, True
                yield batch
                return
            self._mark, self._fresh = mark, False
            yield batch
        self._go_to(epoch + 1, None)

    def close(self) -> None:
        """Stop the workers; the next pass starts them again."""
        self._passes += 1
        batches = self._batches() if self._batches is not None else None
        if batches is not None:
            batches.close()
        self._source.close()
