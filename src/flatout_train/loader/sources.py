"""The sources of a loader's batches: torch's DataLoader over samples by index, or a stream."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from flatout_agent.speedups.workers import worker_safety
from flatout_agent.speedups.workers.reachable import state
from flatout_train.errors import UsageError
from flatout_train.loader import workers as choosing
from flatout_train.loader.arguments import Settings
from flatout_train.loader.copying import on_device
from flatout_train.loader.epochs import BatchMark, Marked
from flatout_train.loader.fetching import BatchedDataset, RowBatches, rows_of
from flatout_train.loader.sampling import IndexOrder, Order, Request, SamplerOrder, World
from flatout_train.loader.seeding import seed_for, seeded


class Requests(Sampler[Request]):
    """Yields the requests of the last pass that has begun."""

    def __init__(self, length: int) -> None:
        self.rest: Iterable[Request] = ()
        self._length = length

    def __iter__(self) -> Iterator[Request]:
        return iter(self.rest)

    def __len__(self) -> int:
        return self._length


class IndexedSource:
    """A map-style data set; its workers keep no state and go on from pass to pass."""

    def __init__(self, settings: Settings, notes: dict[str, str]) -> None:
        self.settings, self.notes = settings, notes
        rows = rows_of(settings.dataset) if settings.collate is None else None
        self._batches = rows or BatchedDataset(settings.dataset, settings.collate)
        self.order = _order(settings, rows)
        if not self.order.samples:
            empty = settings.dataset if settings.sampler is None else settings.sampler
            raise UsageError(f"{type(empty).__name__} is empty: pass one with samples")
        self._requests = Requests(self.order.batches(World()))
        self._loader: DataLoader[Any] | None = None
        self._state: Any = None
        """The state of the data set when the workers got their copies of it."""

    def length(self, world: World) -> int:
        return self.order.batches(world)

    def left(self, mark: BatchMark, world: World) -> bool:
        return self.order.left(mark["position"], world)

    def identity(self) -> dict[str, Any]:
        return self.order.identity()

    def close(self) -> None:
        self._loader = None

    def batches(self, epoch: int, mark: BatchMark | None, world: World) -> Marked:
        if not self.order.batches(world):
            raise UsageError(
                f"drop_last leaves no batch: {self.order.samples} samples are fewer than "
                f"{self.settings.batch_size} for each of {world.size} processes. Pass a smaller "
                "batch_size, or drop_last=False"
            )
        if world.size > 1:
            twice = self.order.padding(world)
            self.notes["distributed"] = (
                f"rank {world.rank} of {world.size}; {twice} samples come twice per epoch"
            )
        position = 0 if mark is None else mark["position"]
        requests = self.order.requests(epoch, position, world)
        first = next(requests, None)
        if first is None:  # there are more ranks now, and the rest is too little for a batch each
            return
        # Workers may hold an older state of the data set than the program does.
        if self._loader is None or (
            self._loader.num_workers > 0 and self._state != state(self.settings.dataset)
        ):
            self._loader = self._begun(first, world)
        self._requests.rest = itertools.chain([first], requests)
        marked = ((batch, {"position": end}) for batch, end in self._loader)
        yield from on_device(marked, self.settings.device)

    def _begun(self, first: Request, world: World) -> DataLoader[Any]:
        workers = self._workers(first, world)
        self._state = state(self.settings.dataset) if workers else None
        return DataLoader(
            self._batches,
            batch_size=None,
            sampler=self._requests,
            collate_fn=_whole,
            num_workers=workers,
            prefetch_factor=max(1, self.settings.prefetch) if workers else None,
            persistent_workers=workers > 0,
            pin_memory=self.settings.pin and workers > 0,  # else it is pinned as it is copied
            generator=torch.Generator(),  # otherwise each pass would draw from the global one
        )

    def _workers(self, first: Request, world: World) -> int:
        settings, batches = self.settings, self._batches
        if isinstance(batches, RowBatches):
            self.notes["workers"] = "0: the data set consists of tensors in memory"
            return 0
        if settings.workers != "auto":
            self.notes["workers"] = f"{settings.workers}: requested"
            return int(settings.workers)
        # A run that is resumed at an epoch's end begins with a short batch: a whole one counts.
        whole = min(settings.batch_size, self.order.samples)
        first = dataclasses.replace(first, indices=(first.indices * whole)[:whole])
        epoch, accelerated = self.order.batches(world), settings.device.type != "cpu"
        workers, reason = choosing.chosen(batches, first, settings.prefetch, epoch, accelerated)
        self.notes["workers"] = f"{workers}: {reason}"
        return workers


def _order(settings: Settings, rows: RowBatches | None) -> Order:
    common: Any = {"seed": settings.seed, "drop_last": settings.drop_last}
    if settings.sampler is not None:
        return SamplerOrder(settings.sampler, settings.batch_size, **common)
    samples = len(settings.dataset) if rows is None else rows.samples
    return IndexOrder(samples, settings.batch_size, shuffle=settings.shuffle, **common)


def _whole(batch: Any) -> Any:
    """DataLoader's collate: batches are complete."""
    return batch


class PlainStream(IterableDataset[Any]):
    """A data set that can only be iterated, as torch's DataLoader takes it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


class StreamSource:
    """An iterable data set, by torch's DataLoader as it is. Its position is a number of batches.

    It is resumed by the data set's own `state_dict` if it has one and is read in this process; else
    by reading again what came before, with the same seeds for the data set's own random generators.
    """

    def __init__(self, settings: Settings, notes: dict[str, str]) -> None:
        self.settings, self.notes = settings, notes
        dataset = settings.dataset
        self._keeps_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        self._workers, reason = self._chosen()
        notes["workers"] = f"{self._workers}: {reason}"

    def _chosen(self) -> tuple[int, str]:
        settings = self.settings
        if settings.workers != "auto":
            return int(settings.workers), "requested; the data set must split itself among several"
        if self._keeps_state:
            return 0, "the data set keeps its own position"
        reason = choosing.why_none(
            settings.dataset,
            settings.collate,
            worker_safety.start_method(),
            settings.batch_size,
            settings.prefetch,
        )
        if reason is None and choosing.cores() < 2:
            reason = "there is one core: a worker would take it from training"
        return (1, "it reads the iterable data set in order") if reason is None else (0, reason)

    def length(self, world: World) -> int:
        try:
            samples = len(self.settings.dataset)
        except (TypeError, NotImplementedError):
            kind = type(self.settings.dataset).__name__
            raise TypeError(
                f"the iterable data set {kind} has no length, so the loader has none: count the "
                "batches as they come, or add a __len__ to the data set"
            ) from None
        size = self.settings.batch_size
        return samples // size if self.settings.drop_last else -(-samples // size)

    def left(self, mark: BatchMark, world: World) -> bool:
        return True  # known once the data set ends

    def close(self) -> None:
        pass  # its workers end with the pass

    def identity(self) -> dict[str, Any]:
        return {"samples": None, "batch_size": self.settings.batch_size}

    def batches(self, epoch: int, mark: BatchMark | None, world: World) -> Marked:
        if world.size > 1:
            self.notes["distributed"] = "the iterable data set must split itself among ranks"
        workers = max(1, self._workers)  # one worker reads in the same order as this process
        begin: BatchMark = {"read": 0, "workers": workers, "state": None}
        before = begin if mark is None else mark
        if before["workers"] != workers:
            raise UsageError(
                f"the state was saved with {before['workers']} workers, now there are "
                f"{workers}: each reads its own part of an iterable data set. Pass "
                f"workers={before['workers']}"
            )
        dataset, read = self.settings.dataset, 0
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        if before["state"] is not None:
            dataset.load_state_dict(copy.deepcopy(before["state"]))
            read = before["read"]
        seed = seed_for(self.settings.seed, "stream", epoch, world.rank)
        numbered = enumerate(self._read(seed, read), read + 1)
        marked = (
            (batch, {"read": number, "workers": workers, "state": self._own_state()})
            for number, batch in numbered
            if number > before["read"]
        )
        yield from on_device(marked, self.settings.device)

    def _own_state(self) -> Any:
        here = self._keeps_state and not self._workers
        return copy.deepcopy(self.settings.dataset.state_dict()) if here else None

    def _read(self, seed: int, read: int) -> Iterator[Any]:
        """The batches from the `read`-th on. torch seeds workers; here each batch has a seed."""
        settings, workers, dataset = self.settings, self._workers, self.settings.dataset
        loader: DataLoader[Any] = DataLoader(
            dataset if isinstance(dataset, IterableDataset) else PlainStream(dataset),
            settings.batch_size,
            drop_last=settings.drop_last,
            collate_fn=settings.collate,
            num_workers=workers,
            prefetch_factor=max(1, settings.prefetch) if workers else None,
            pin_memory=settings.pin and workers > 0,
            generator=torch.Generator().manual_seed(seed),
        )
        # The generators of a data set that keeps its state are part of that.
        own = [] if self._keeps_state and not workers else worker_safety.random_generators(loader)
        with seeded(seed_for(seed, "begin"), own):
            batches = iter(loader)
        while True:
            with seeded(seed_for(seed, read), own):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            read += 1
            yield batch
