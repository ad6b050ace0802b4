"""`loader()`: batches on the device in time, resumable at the exact sample."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout_train.errors import UsageError
from flatout_train.loader import bucketing, sampling
from flatout_train.loader.arguments import Settings, settings
from flatout_train.loader.caching import Columns, columns_of
from flatout_train.loader.fetching import Collate
from flatout_train.loader.prefetching import Ahead, copier
from flatout_train.loader.sampling import IndexOrder, Order, SamplerOrder, World
from flatout_train.loader.sources import ColumnSource, Mark, SampleSource, Source
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
    """Batches of `dataset`, loaded ahead, and on the device when they are asked for.

    Iterate it once for each epoch; the next pass is the next epoch. `state_dict()` and
    `load_state_dict()` resume at the exact sample, with the same batches bit for bit, whatever the
    number of workers. Where `torch.distributed` is initialised each rank gets its share of every
    epoch, equally many batches. What each argument is, is said at `Loader`.

    Raises UsageError for arguments that cannot be, an empty data set among them. An error in the
    data set passes through, with a note that names the index.
    """
    return Loader(settings(**locals()))


class Loader:
    """What `flatout.loader` returns. `len()`: batches of one epoch, for this rank.

    `notes` says what was chosen and why: "workers", "cache", "lengths", "padding", "distributed",
    "resume". `device` is where the batches are. The arguments of `flatout.loader`:

    - `dataset`: map-style (`dataset[i]` and `len(dataset)`), iterable-style, a `TensorDataset`, a
      tensor or NumPy array of samples, or a tuple or dict of them. Tensors and arrays are batched
      by indexing, with no Python per sample and no workers.
    - `batch_size`: samples of one batch of this process.
    - `shuffle`: another order in each epoch, a function of (seed, epoch).
    - `device`: "auto" is `flatout.device()`. On CUDA, ROCm and XPU batches are copied from pinned
      memory on a stream of their own, `prefetch` batches ahead.
    - `workers`: processes that load. "auto": as many as the first batch shows to be needed and the
      cores that this process may use allow; none where samples are cheap. An iterable data set
      gets one at most unless more are asked for: it then has to share itself out, as with torch's
      DataLoader. Where workers cannot be started, the training process loads; `notes` says why.
    - `seed`: of the order, and of all random numbers in loading. Each batch is loaded under a seed
      of its own made of (seed, epoch, position, rank), for torch, `random`, NumPy and the
      generators that the data set holds: random augmentation is the same for any number of
      workers, and the program's own random numbers are not touched.
    - `drop_last`: leave out the last batch when it is short.
    - `collate`: list of samples -> batch. None: torch's `default_collate`, or with `lengths`
      `flatout_train.loader.bucketing.Pad()`: 1-d samples are padded at the end with 0, targets
      ("labels", or the second of a pair) with -100, and an `attention_mask` is made for
      `input_ids`.
    - `lengths`: each sample's length, or sample -> length (every sample is then read once): batches
      are made of samples of similar length, and each sample still comes once in each epoch.
      Without `shuffle` the longest come first.
    - `cache`: "auto": a data set whose samples are costly, not random, and of one shape is kept in
      memory as it is loaded, on the device where it fits easily, else on the host. "host",
      "device": there, or UsageError. False: never.
    - `sampler`: indices, in place of `shuffle`. Every rank draws the same ones and takes its share;
      a `DistributedSampler` gives each rank its own. A `torch.Generator` that it holds is seeded
      anew in each epoch.
    - `plan`: a `flatout.toml`; its settings hold where the arguments do not say otherwise.
    - `prefetch`: batches under way to the device, and in each worker.

    A pass that was broken off is followed by the next epoch, but `state_dict()` still says where it
    was: what loads it goes on in the middle. Iterable data sets are resumed by their own
    `state_dict` where they have one, else by reading what came before once more.
    """

    def __init__(self, given: Settings) -> None:
        self.device, self.seed = given.device, given.seed
        self.notes: dict[str, str] = {}
        self._source = _source(given, self.notes)
        self._copier = copier(given.device, given.prefetch)
        self._epoch = 0
        self._mark: Mark | None = None
        self._fresh = True
        """The next pass is of `_epoch`, after `_mark`; else one of `_epoch` has begun."""
        self._passes = 0
        if self._source.feed is not None:
            self._source.feed.belongs_to(self)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch: `for epoch in range(loader.epoch, epochs)` resumes."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of this epoch, from its start.

        Of the epoch that a loaded state is in the middle of, it goes on from there: a loop that
        calls `set_epoch(epoch)` before each pass resumes as it is.
        """
        if not (self._fresh and epoch == self._epoch):
            self._go_to(epoch, None)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that were handed out; to be loaded by any number of ranks.

        Numbers, strings, lists and dicts alone, but for the state that an iterable data set keeps
        of itself. The same on every rank, except with iterable data sets.
        """
        return {
            "version": VERSION,
            "epoch": self._epoch,
            "mark": self._mark,
            "seed": self.seed,
            "order": self._source.identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the very next batch after those that `state` counts, as if without a break.

        Raises UsageError where it is the state of another data set, order or seed.
        """
        version = state.get("version")
        if version != VERSION:
            raise UsageError(
                f"the loader's state has version {version!r}, this flatout reads {VERSION}: load "
                "it with the flatout that wrote it"
            )
        ours = {"seed": self.seed, **self._source.identity()}
        theirs = {"seed": state["seed"], **state["order"]}
        different = [name for name in ours if ours[name] != theirs.get(name)]
        if different:
            name = different[0]
            raise UsageError(
                f"the loader's state is of another order: {name} was {theirs.get(name)!r}, now it "
                f"is {ours[name]!r}. Make the loader with the data set and arguments it had"
            )
        self._go_to(int(state["epoch"]), state["mark"])

    def _go_to(self, epoch: int, mark: Mark | None) -> None:
        self._epoch, self._mark, self._fresh = epoch, mark, True
        self._passes += 1  # one that is under way ends

    def __len__(self) -> int:
        return self._source.length(sampling.world())

    def __iter__(self) -> Iterator[Any]:
        if not self._fresh:
            self._go_to(self._epoch + 1, None)
        self._passes += 1
        world = sampling.world()
        batches = self._source.batches(self._epoch, self._mark, world)
        return _Pass(self, Ahead(batches, self._copier), self._passes, world)

    def _handed_out(self, mark: Mark, world: World) -> bool:
        """Count a batch. Returns whether it was the epoch's last."""
        last = not self._source.left(mark, world)
        self._epoch, self._mark = (self._epoch + 1, None) if last else (self._epoch, mark)
        self._fresh = last
        return last

    def close(self) -> None:
        """End the workers; another pass starts them again."""
        self._passes += 1
        if self._source.feed is not None:
            self._source.feed.close()


class _Pass:
    """One epoch's iterator: what it hands out is what the loader's state counts."""

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
                "this pass ended when the loader began another or was given another position: a "
                "loader makes one pass at a time, make a second loader for a second one"
            )
        try:
            batch, mark = next(self._batches)
        except StopIteration:
            self._over = True
            owner._go_to(owner._epoch + 1, None)
            raise
        except Exception:
            self._failed = True
            raise
        self._over = owner._handed_out(mark, self._world)
        return batch


def _source(given: Settings, notes: dict[str, str]) -> Source:
    if given.stream:
        return StreamSource(given, notes)
    columns = columns_of(given.dataset) if given.collate is None else None
    if given.lengths is not None and given.collate is None:
        given = dataclasses.replace(given, collate=bucketing.Pad())
    order = _order(given, notes, columns)
    if columns is not None:
        return ColumnSource(given, notes, order, columns)
    return SampleSource(given, notes, order)


def _order(given: Settings, notes: dict[str, str], columns: Columns | None) -> Order:
    if given.sampler is not None:
        return SamplerOrder(
            given.sampler, given.batch_size, seed=given.seed, drop_last=given.drop_last
        )
    samples = len(given.dataset) if columns is None else len(columns)
    lengths = None
    if given.lengths is not None:
        began = time.perf_counter()
        lengths = bucketing.measured(given.dataset, samples, given.lengths)
        if callable(given.lengths):
            notes["lengths"] = (
                f"{samples} samples were read in {time.perf_counter() - began:.1f} s to measure "
                "them: a list of lengths saves that"
            )
    order = IndexOrder(
        samples,
        given.batch_size,
        shuffle=given.shuffle,
        seed=given.seed,
        drop_last=given.drop_last,
        lengths=lengths,
    )
    if lengths is not None:
        notes["padding"] = _padding(order, lengths, given.batch_size)
    return order


def _padding(order: IndexOrder, lengths: Tensor, batch_size: int) -> str:
    generator = torch.Generator().manual_seed(order.seed)
    plain = torch.randperm(len(lengths), generator=generator)
    bucketed = bucketing.padding_share(lengths, order.epoch(0, batch_size), batch_size)
    mixed = bucketing.padding_share(lengths, plain, batch_size)
    return f"{bucketed:.1%} of a batch is padding, in batches at random {mixed:.1%} would be"
