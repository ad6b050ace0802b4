"""The sources of a loader's batches: whole tensors, single samples, or a stream."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from flatout_agent.limits import spare_memory
from flatout_train.errors import UsageError
from flatout_train.loader import caching, feeding
from flatout_train.loader.arguments import Settings
from flatout_train.loader.caching import Columns, SampleCache
from flatout_train.loader.feeding import Feed
from flatout_train.loader.fetching import BatchedDataset, Parcel
from flatout_train.loader.sampling import IndexOrder, Order, Request, World

CHANGED = "the data set has changed since"
Mark = dict[str, Any]
"""A position in an epoch, to be saved: only numbers, strings, lists and tensors."""


class BatchSource(Protocol):
    """Batches of one epoch after another."""

    @property
    def feed(self) -> Feed | None:
        """The DataLoader that loads the batches; None: there is none."""

    def batches(self, epoch: int, mark: Mark | None, world: World) -> Iterator[tuple[Any, Mark]]:
        """The batches of `epoch` after `mark`, each with the mark after it."""

    def length(self, world: World) -> int: ...
    def left(self, mark: Mark, world: World) -> bool: ...
    def identity(self) -> dict[str, Any]:
        """What must be equal for a mark to have the same meaning."""


class _Indexed:
    """Sources with an order of samples."""

    def __init__(self, settings: Settings, notes: dict[str, str], order: Order) -> None:
        self.settings, self.notes, self.order = settings, notes, order

    def length(self, world: World) -> int:
        return self.order.batches(world)

    def left(self, mark: Mark, world: World) -> bool:
        return self.order.left(mark["position"], world)

    def identity(self) -> dict[str, Any]:
        return {"samples": self.order.samples, **self.order.identity()}

    def requests(
        self, epoch: int, mark: Mark | None, world: World
    ) -> tuple[Iterator[Request], int]:
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
        group = self.settings.batch_size * world.size
        position = 0
        if mark is not None:
            position, group = mark["position"], mark["group"]
        return self.order.requests(epoch, position, group, world), group


class ColumnSource(_Indexed):
    """Tensors in memory: batches by indexing, on the device where they fit there."""

    feed = None

    def __init__(
        self, settings: Settings, notes: dict[str, str], order: Order, columns: Columns
    ) -> None:
        super().__init__(settings, notes, order)
        self._original = columns
        self._columns: Columns | None = None
        self._versions: list[int] = []
        self.notes["workers"] = "0: the data set consists of tensors in memory"

    def batches(self, epoch: int, mark: Mark | None, world: World) -> Iterator[tuple[Any, Mark]]:
        versions = [
            0 if tensor.is_inference() else tensor._version for tensor in self._original.tensors
        ]
        if self._columns is None or versions != self._versions:
            self._columns, self._versions = None, versions  # frees the old copy first
            self._columns, self.notes["cache"] = placed(self._original, self.settings)
        requests, group = self.requests(epoch, mark, world)
        return rows(self._columns, requests, group, self.settings.pin)


def placed(columns: Columns, settings: Settings) -> tuple[Columns, str]:
    """The columns on the device that suits best, and why; UsageError where they do not fit."""
    device, cache = settings.device, settings.cache
    size = f"{columns.nbytes / 1e6:.1f} MB"
    if columns.device == device:
        return columns, f"{size} on {device}"
    free = caching.device_memory(device)
    if cache == "device":
        if free is not None and columns.nbytes > 0.9 * free:
            raise UsageError(
                f"cache='device': the data set has {size}, but {device} has only "
                f"{free / 1e6:.1f} MB free: pass cache='auto'"
            )
        return columns.to(device), f"{size} on {device}: requested"
    if cache == "auto" and free is not None and columns.nbytes <= caching.DEVICE_SHARE * free:
        return columns.to(device), f"{size} on {device}, which has {free / 1e6:.0f} MB free"
    return columns, f"{size} in host memory"


def rows(
    columns: Columns, requests: Iterator[Request], group: int, pin: bool
) -> Iterator[tuple[Any, Mark]]:
    """The requested rows of `columns`."""
    for request in requests:
        wanted = torch.as_tensor(request.indices)
        yield columns.take(wanted, pin), {"position": request.end, "group": group}


def _as_list(request: Request) -> Request:
    """The request with indices as a list: a tensor would be sent to the worker by its own file."""
    indices = request.indices
    if isinstance(indices, torch.Tensor):
        return dataclasses.replace(request, indices=indices.tolist())
    return request


class SampleSource(_Indexed):
    """A map-style data set, loaded sample by sample; cached where that is faster and possible."""

    def __init__(self, settings: Settings, notes: dict[str, str], order: Order) -> None:
        super().__init__(settings, notes, order)
        self.fetcher = BatchedDataset(settings.dataset, settings.collate)
        self.feed: Feed = Feed(
            self.fetcher,
            lambda: order.batches(World()),  # not self: a deleted loader must end its workers
            pin=settings.pin,
            prefetch=settings.prefetch,
        )
        self._method = feeding.start_method()
        self._probed = False
        self._columns: Columns | None = None
        self._begin_workers()

    def _begin_workers(self) -> None:
        """Start one worker to measure loading: a forked one inherits no file opened here."""
        workers = self.settings.workers
        if workers == 0:
            self.notes["workers"] = "0: requested"
            return
        reason = feeding.never(self.feed, self._method)
        if reason is None and workers == "auto":
            reason = feeding.better_not(self.feed, self._method)
        if reason is not None:
            self.notes["workers"] = f"0: {reason}"
            return
        if workers != "auto":
            self.notes["workers"] = f"{workers}: requested"
            self.feed.set_workers(int(workers))
        elif self._method == "fork" and feeding.cores() > 1 and not self._shared_memory_lacks():
            self.feed.set_workers(1)

    def _shared_memory_lacks(self) -> bool:
        return feeding.too_small(self.feed, self.settings.batch_size) is not None

    @property
    def _undecided(self) -> bool:
        return "workers" not in self.notes

    def batches(self, epoch: int, mark: Mark | None, world: World) -> Iterator[tuple[Any, Mark]]:
        requests, group = self.requests(epoch, mark, world)
        if self.feed.renew():
            self._forget(CHANGED)
        self._keep_whole()
        if self._columns is not None:
            return rows(self._columns, requests, group, self.settings.pin)
        return self._loaded(requests, group)

    def _loaded(self, requests: Iterator[Request], group: int) -> Iterator[tuple[Any, Mark]]:
        first = next(requests, None)
        if first is None:
            return
        wanted = self._undecided or self.settings.cache is not False
        first = dataclasses.replace(first, probe=wanted and not self._probed)
        pending = self.feed.requests.pending
        self.feed.requests.begin(map(_as_list, itertools.chain([first], requests)))
        parcels = self.feed.start()
        while (parcel := next(parcels, None)) is not None:
            request = pending.popleft()
            if parcel.probe is not None and self._settle(parcel, request):
                self.feed.requests.again()
                del parcels  # this stops its workers
                parcels = self.feed.start()
            if self.feed.failure is not None:
                self.notes["workers"] = self.feed.failure
            filling = self.fetcher.cache is not None and not self.feed.num_workers
            if filling:
                self.feed.remember(anew=True)  # loading may have changed it, such as a counter
            yield parcel.batch, {"position": request.end, "group": group}
            if filling and self.feed.renew():
                self._forget(CHANGED)
        self._keep_whole()

    def _settle(self, parcel: Parcel, request: Request) -> bool:
        """Choose workers and cache from the first batch's cost; True: restart with them."""
        self._probed = True
        before = self.feed.num_workers
        if self._undecided:
            workers, reason = self._workers(parcel)
            self.notes["workers"] = f"{workers}: {reason}"
        else:
            workers = before
        cache = self._cache(parcel, workers)
        if cache is not None:
            cache.put(torch.as_tensor(request.indices), parcel.batch)
            self.fetcher.cache = cache
        restart = workers != before or (cache is not None and workers > 0)
        if restart:
            self.feed.set_workers(workers, quiet=True)
        return restart

    def _workers(self, parcel: Parcel) -> tuple[int, str]:
        assert parcel.probe is not None
        held = feeding.better_not(self.feed, self._method)  # such as a file that loading opened
        if held is not None and not self.feed.num_workers:
            return 0, held
        batch = caching.sample_bytes(parcel.batch) * self.settings.batch_size
        return feeding.enough(
            parcel.probe,
            self.order.batches(World()),
            feeding.cores(),
            self.settings.device.type != "cpu",
            self._method,
            under_way=batch * (max(1, self.settings.prefetch) + 1),
            free=caching.shared_memory(),
        )

    def _cache(self, parcel: Parcel, workers: int) -> SampleCache | None:
        cache = self.settings.cache
        if cache is False:
            return None
        reason = self._why_not_cached(parcel, workers)
        if reason is None:
            self.notes["cache"] = "filled as samples are loaded"
            return SampleCache(parcel.batch, self.order.samples, workers > 0)
        if cache != "auto":
            raise UsageError(f"cache={cache!r}: {reason}: pass cache='auto' or False")
        self.notes["cache"] = f"no: {reason}"
        return None

    def _why_not_cached(self, parcel: Parcel, workers: int) -> str | None:
        assert parcel.probe is not None
        if self.settings.collate is not None or not isinstance(self.order, IndexOrder):
            return "collate, lengths or sampler was passed"
        if parcel.probe.random is not None:
            return parcel.probe.random
        reason = caching.cacheable(parcel.batch)
        if reason is not None:
            return reason
        if self.settings.cache == "auto" and parcel.probe.seconds < self._cheap:
            return f"a batch takes {parcel.probe.seconds * 1e3:.2f} ms to load"
        size = caching.sample_bytes(parcel.batch) * self.order.samples
        free = spare_memory()
        if free is None:
            return "free memory is unknown on this system" if self._auto_cache else None
        share = caching.HOST_SHARE if self._auto_cache else 0.9
        room = [free, *([caching.shared_memory()] if workers else [])]
        least = min(value for value in room if value is not None)
        if size > share * least:
            return f"{size / 1e6:.0f} MB do not fit into {least / 1e6:.0f} MB of free memory"
        return None

    @property
    def _cheap(self) -> float:
        return feeding.CHEAP_S[self.settings.device.type != "cpu"]

    @property
    def _auto_cache(self) -> bool:
        return self.settings.cache == "auto"

    def _keep_whole(self) -> None:
        """Once all samples are cached, use neither workers nor the data set any more."""
        cache = self.fetcher.cache
        if cache is None:
            return
        if not cache.holds:
            self._forget(str(cache.trouble))
        elif cache.complete:
            self.feed.finished()
            self._columns, self.notes["cache"] = placed(cache.columns, self.settings)
            self.fetcher.cache = None

    def _forget(self, reason: str) -> None:
        if self.fetcher.cache is not None or self._columns is not None:
            self.notes["cache"] = f"no: {reason}"
        self.fetcher.cache = self._columns = None
