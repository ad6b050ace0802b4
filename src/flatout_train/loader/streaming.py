"""Iterable data sets: batches in order, resumed by the data set's own state or by reading again."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from flatout_train.errors import UsageError
from flatout_train.loader import feeding
from flatout_train.loader.arguments import Settings
from flatout_train.loader.feeding import Feed
from flatout_train.loader.fetching import Collate, Parcel, collated, generators_of
from flatout_train.loader.sampling import World
from flatout_train.loader.seeding import seed_for, seeded
from flatout_train.loader.sources import Mark


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A request to a worker for the next batch of an iterable data set."""

    pass_: int
    """Number of the pass; a new number restarts the data set."""
    seed: int
    """Seed of the epoch; worker and batch number are mixed in."""
    epoch: int
    read: tuple[int, ...] = ()
    """Batches that each worker had yielded before a resumed run continues."""
    states: tuple[Any, ...] = ()
    """The data set's own state in each worker after those batches."""
    idle: bool = False
    """A request for nothing, so that the next one goes to the worker whose turn it is."""


class StreamFetcher(Dataset[Parcel]):
    """An iterable data set seen as batches; each worker reads its own copy, as in torch."""

    def __init__(
        self, dataset: Any, batch_size: int, drop_last: bool, collate: Collate | None
    ) -> None:
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.collate = collate
        self._pass: int | None = None
        self._samples: Any = None
        self._read = 0
        self._own: list[Any] = []

    def __getitem__(self, request: StreamRequest) -> Parcel:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        if request.idle:
            return Parcel(None, worker=worker, empty=True)
        if self._pass != request.pass_:
            self._begin(request, worker)
        samples = self._next(request, worker)
        short = len(samples) < self.batch_size
        if not samples or (short and self.drop_last):
            return Parcel(None, worker=worker, empty=True, last=True)
        try:
            with seeded(seed_for(request.seed, worker, self._read, "collate"), self._own):
                batch = collated(samples, self.collate)
        except UsageError as error:
            return Parcel(None, problem=str(error))
        self._read += 1
        return Parcel(batch, worker=worker, state=self._state(), last=short)

    def _begin(self, request: StreamRequest, worker: int) -> None:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(request.epoch)
        self._own = generators_of(self.dataset, self.collate)
        self._pass, self._read = request.pass_, 0
        state = request.states[worker] if request.states else None
        with seeded(seed_for(request.seed, worker, "begin"), self._own):
            self._samples = iter(self.dataset)
            if state is not None and _keeps_state(self._samples):
                self._samples.load_state_dict(state)
            elif state is not None:
                self.dataset.load_state_dict(state)
                self._samples = iter(self.dataset)
        before = request.read[worker] if request.read else 0
        if state is not None:
            self._read = before
        while self._read < before and self._next(request, worker):
            self._read += 1

    def _next(self, request: StreamRequest, worker: int) -> list[Any]:
        with seeded(seed_for(request.seed, worker, self._read), self._own):
            try:
                return list(itertools.islice(self._samples, self.batch_size))
            except Exception as error:
                error.add_note(
                    f"flatout.loader: raised by the iterable data set after {self._read} batches "
                    f"of {self.batch_size}"
                )
                raise

    def _state(self) -> Any:
        for keeper in (self._samples, self.dataset):
            if _keeps_state(keeper):
                return copy.deepcopy(keeper.state_dict())
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": None, "_samples": None, "_own": []}


def _keeps_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


class StreamSource:
    """An iterable data set. Its position is the number of batches yielded by each worker."""

    def __init__(self, settings: Settings, notes: dict[str, str]) -> None:
        self.settings, self.notes = settings, notes
        fetcher = StreamFetcher(
            settings.dataset, settings.batch_size, settings.drop_last, settings.collate
        )
        self.feed: Feed = Feed(
            fetcher, lambda: _stream_length(settings), pin=settings.pin, prefetch=settings.prefetch
        )
        self._pass = 0
        self._begin_workers()

    def _begin_workers(self) -> None:
        workers, method = self.settings.workers, feeding.start_method()
        if workers == 0:
            self.notes["workers"] = "0: requested"
            return
        reason = feeding.never(self.feed, method)
        if workers == "auto" and reason is None:
            reason = feeding.better_not(self.feed, method)
            reason = reason or feeding.too_small(self.feed, self.settings.batch_size)
            if reason is None and feeding.cores() < 2:
                reason = "there is one core: a worker would take it from training"
        if reason is not None:
            self.notes["workers"] = f"0: {reason}"
        elif workers == "auto":
            self.notes["workers"] = "1: it reads the iterable data set in order"
            self.feed.set_workers(1)
        else:
            self.notes["workers"] = f"{workers}: requested; the data set must split itself"
            self.feed.set_workers(int(workers))

    def length(self, world: World) -> int:
        return _stream_length(self.settings)

    def left(self, mark: Mark, world: World) -> bool:
        return True  # known once the data set ends

    def identity(self) -> dict[str, Any]:
        return {"samples": None, "batch_size": self.settings.batch_size}

    def batches(self, epoch: int, mark: Mark | None, world: World) -> Iterator[tuple[Any, Mark]]:
        if world.size > 1:
            self.notes["distributed"] = "the iterable data set must split itself among ranks"
        self.feed.renew()
        workers = max(1, self.feed.num_workers)
        if mark is not None and len(mark["read"]) != workers:
            raise UsageError(
                f"the state was saved with {len(mark['read'])} workers, now there are {workers}: "
                "each reads its own part of an iterable data set. Pass "
                f"workers={len(mark['read'])}"
            )
        self._pass += 1
        return self._read(epoch, mark, workers, world)

    def _read(
        self, epoch: int, mark: Mark | None, workers: int, world: World
    ) -> Iterator[tuple[Any, Mark]]:
        read = [0] * workers if mark is None else list(mark["read"])
        states = [None] * workers if mark is None else list(mark["states"])
        turn = 0 if mark is None else mark["turn"]
        if mark is not None and any(read):
            has_state = any(state is not None for state in states)
            how = (
                "by the data set's own state" if has_state else "by reading again what came before"
            )
            self.notes["resume"] = f"{sum(read)} batches skipped {how}"
        seed = seed_for(self.settings.seed, "stream", epoch, world.rank)
        request = StreamRequest(self._pass, seed, epoch)
        idle = dataclasses.replace(request, idle=True)
        begin = dataclasses.replace(request, read=tuple(read), states=tuple(states))
        repeat = itertools.repeat
        self.feed.requests.begin(
            itertools.chain(repeat(idle, turn), repeat(begin, workers), repeat(request))
        )
        ended = set()
        for parcel in self.feed.start():
            if self.feed.requests.pending.popleft().idle:
                continue
            if parcel.last:
                ended.add(parcel.worker)
            if not parcel.empty:
                read[parcel.worker] += 1
                states[parcel.worker] = parcel.state
                turn = (parcel.worker + 1) % workers
                yield parcel.batch, {"read": [*read], "states": [*states], "turn": turn}
            if len(ended) == workers:
                return


def _stream_length(settings: Settings) -> int:
    try:
        samples = len(settings.dataset)
    except (TypeError, NotImplementedError):
        kind = type(settings.dataset).__name__
        raise TypeError(
            f"the iterable data set {kind} has no length, so the loader has none: count the "
            "batches as they come, or add a __len__ to the data set"
        ) from None
    size = settings.batch_size
    return samples // size if settings.drop_last else -(-samples // size)
