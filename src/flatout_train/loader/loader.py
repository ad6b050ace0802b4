"""`loader()`: batches on the device before they are needed, resumable at the exact sample."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout_agent.watch import library_pulse
from flatout_train.errors import UsageError
from flatout_train.loader import bucketing, sampling
from flatout_train.loader.arguments import Settings, settings
from flatout_train.loader.caching import Columns, columns_of
from flatout_train.loader.fetching import Collate
from flatout_train.loader.prefetching import PrefetchedBatches, copier
from flatout_train.loader.sampling import IndexOrder, Order, SamplerOrder, World
from flatout_train.loader.sources import BatchSource, ColumnSource, Mark, SampleSource
from flatout_train.loader.streaming import StreamSource

VERSION = 1


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
    lengths: Sequence[int] | Tensor | Callable[[Any], int] | None = None,
    cache: bool | str = "auto",
    sampler: Iterable[Any] | None = None,
    plan: Any = None,
    prefetch: int = 2,
) -> Loader:
    """Batches of `dataset`, loaded ahead of time and already on the device.

    Iterate it once per epoch; the next pass is the next epoch. `state_dict()` and
    `load_state_dict()` resume at the exact sample, with bit-identical batches, whatever the
    number of workers. Where `torch.distributed` is initialised, each rank gets its share of every
    epoch, in the same number of batches. `Loader` documents the arguments.

    Raises UsageError for invalid arguments, such as an empty data set. An error in the data set
    passes through, with a note that names the index.
    """
    return Loader(settings(**locals()))


class Loader:
    """Result of `flatout.loader`. `len()`: batches per epoch, for this rank.

    `notes` says what was chosen and why: "workers", "cache", "lengths", "padding", "distributed",
    "resume". `device` is the device of the batches. The arguments of `flatout.loader`:

    - `dataset`: map-style (`dataset[i]` and `len(dataset)`), iterable-style, a `TensorDataset`, a
      tensor or NumPy array of samples, or a tuple or dict of them. Tensors and arrays are batched
      by indexing, with no Python code per sample and no workers.
    - `batch_size`: samples per batch of this process.
    - `shuffle`: a different order in each epoch, a function of (seed, epoch).
    - `device`: "auto" is `flatout.device()`. On CUDA, ROCm and XPU batches are copied from pinned
      memory on a side stream, `prefetch` batches ahead.
    - `workers`: number of loading processes. "auto": as many as the first batch shows to be needed
      and the cores available to this process allow; none where samples are cheap. An iterable
      data set gets at most one unless you request more: it must then split itself among workers,
      as with torch's DataLoader. Where workers cannot be started, the training process loads;
      `notes` says why.
    - `seed`: seed of the order and of all random numbers in loading. Each batch is loaded under its
      own seed, derived from (seed, epoch, position, rank), for torch, `random`, NumPy and the
      generators in the data set: random augmentation is the same for any number of workers, and
      the program's own random numbers are not affected.
    - `drop_last`: drop the last batch of an epoch when it is short.
    - `collate`: list of samples -> batch. None: torch's `default_collate`, or with `lengths`
      `flatout_train.loader.bucketing.Pad()`: 1-d samples are padded at the end with 0, targets
      ("labels", or the second of a pair) with -100, and an `attention_mask` is added for
      `input_ids`.
    - `lengths`: each sample's length, or sample -> length (every sample is then read once): batches
      consist of samples of similar length, and each sample still comes once per epoch. Without
      `shuffle` the longest come first.
    - `cache`: "auto": a data set whose samples are costly, not random, and of one shape is cached
      in memory as it is loaded, on the device where it fits easily, else on the host. "host",
      "device": cached there, or UsageError. False: never.
    - `sampler`: yields indices, instead of `shuffle`. Every rank draws the same indices and takes
      its share; a `DistributedSampler` gives each rank its own. A `torch.Generator` in it is
      reseeded in each epoch.
    - `plan`: a `flatout.toml`; its settings apply to arguments that are left at their defaults.
    - `prefetch`: batches in flight to the device, and in each worker.

    A pass that was interrupted is followed by the next epoch, but `state_dict()` still holds its
    position: loading it resumes in the middle. Iterable data sets are resumed by their own
    `state_dict` where they have one, else by reading again what came before.
    """

    def __init__(self, settings: Settings) -> None:
        self.device, self.seed = settings.device, settings.seed
        self.notes: dict[str, str] = {}
        self._source = _source(settings, self.notes)
        self._copier = copier(settings.device, settings.prefetch)
        self._epoch = 0
        self._mark: Mark | None = None
        self._fresh = True
        """Whether the next pass is of `_epoch`, after `_mark`; else a pass of it has begun."""
        self._passes = 0
        if self._source.feed is not None:
            self._source.feed.belongs_to(self)

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

        Raises UsageError where it is the state of another data set, order or seed.
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

    def _go_to(self, epoch: int, mark: Mark | None) -> None:
        self._epoch, self._mark, self._fresh = epoch, mark, True
        self._passes += 1  # ends the current pass

    def __len__(self) -> int:
        return self._source.length(sampling.world())

    def __iter__(self) -> Iterator[Any]:
        if not self._fresh:
            self._go_to(self._epoch + 1, None)
        self._passes += 1
        world = sampling.world()
        batches = self._source.batches(self._epoch, self._mark, world)
        return _Pass(self, PrefetchedBatches(batches, self._copier), self._passes, world)

    def _handed_out(self, mark: Mark, world: World) -> bool:
        """Count a yielded batch. Returns whether it was the epoch's last."""
        last = not self._source.left(mark, world)
        self._epoch, self._mark = (self._epoch + 1, None) if last else (self._epoch, mark)
        self._fresh = last
        return last

    def close(self) -> None:
        """Stop the workers; the next pass starts them again."""
        self._passes += 1
        if self._source.feed is not None:
            self._source.feed.close()


class _Pass:
    """The iterator of one epoch; the loader's state counts the batches that it yields."""

    def __init__(
        self, owner: Loader, batches: Iterator[tuple[Any, Mark]], number: int, world: World
    ) -> None:
        self._owner, self._batches = owner, batches
        self._number, self._world = number, world
        self._over = self._failed = False

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        owner = self._owner
        if self._over:
            if owner._passes == self._number:
                next(self._batches, None)  # lets the source see the end as well
            raise StopIteration
        if self._failed:
            raise RuntimeError("this pass ended with an error: iterate the loader again")
        if owner._passes != self._number:
            raise UsageError(
                "this pass ended when the loader began another pass or its position was changed: a "
                "loader makes one pass at a time; create a second loader for concurrent passes"
            )
        began = time.perf_counter()
        try:
            batch, mark = next(self._batches)
        except StopIteration:
            self._over = True
            owner._go_to(owner._epoch + 1, None)
            raise
        except Exception:
            self._failed = True
            raise
        library_pulse.waited(time.perf_counter() - began)
        self._over = owner._handed_out(mark, self._world)
        return batch


def _source(settings: Settings, notes: dict[str, str]) -> BatchSource:
    if settings.stream:
        return StreamSource(settings, notes)
    columns = columns_of(settings.dataset) if settings.collate is None else None
    if settings.lengths is not None and settings.collate is None:
        settings = dataclasses.replace(settings, collate=bucketing.Pad())
    order = _order(settings, notes, columns)
    if columns is not None:
        return ColumnSource(settings, notes, order, columns)
    return SampleSource(settings, notes, order)


def _order(settings: Settings, notes: dict[str, str], columns: Columns | None) -> Order:
    if settings.sampler is not None:
        return SamplerOrder(
            settings.sampler, settings.batch_size, seed=settings.seed, drop_last=settings.drop_last
        )
    samples = len(settings.dataset) if columns is None else len(columns)
    lengths = None
    if settings.lengths is not None:
        began = time.perf_counter()
        lengths = bucketing.measured(settings.dataset, samples, settings.lengths)
        if callable(settings.lengths):
            notes["lengths"] = (
                f"{samples} samples were read in {time.perf_counter() - began:.1f} s for their "
                "lengths: passing a list of lengths avoids that"
            )
    order = IndexOrder(
        samples,
        settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        drop_last=settings.drop_last,
        lengths=lengths,
    )
    if lengths is not None:
        notes["padding"] = _padding(order, lengths, settings.batch_size)
    return order


def _padding(order: IndexOrder, lengths: Tensor, batch_size: int) -> str:
    generator = torch.Generator().manual_seed(order.seed)
    plain = torch.randperm(len(lengths), generator=generator)
    bucketed = bucketing.padding_share(lengths, order.epoch(0, batch_size), batch_size)
    mixed = bucketing.padding_share(lengths, plain, batch_size)
    return f"{bucketed:.1%} of a batch is padding; in random batches it would be {mixed:.1%}"
