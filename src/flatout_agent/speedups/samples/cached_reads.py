"""Samples of a dataset from a cache, for as long as they are known to be what it would return.

`CachedReads` answers reads from a store, which its owners provide: `KeptSamples` in the program's
own process, `WorkerSamples` in loader workers. `CachingFetcher` puts it between a dataset and its
collate function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from typing import Any

from flatout_agent.speedups.forward_state import drawn, random_state
from flatout_agent.speedups.samples import samples
from flatout_agent.speedups.workers.reachable import state

CHECKS = 16
"""Samples read twice in each epoch ..."""
CHECK_EVERY = 61
"""... and then one in this many; a prime, so that each epoch checks other samples."""
PATIENCE = 2
"""A dataset may open its file on the first read: its attributes may change this many times."""
TIMED, LITTLE, LONG_S = 8, 0.1, 0.005
"""If the first batches, this many, take at least this many seconds each, and reading the samples is
less than this share of it, the cache is given up: the collate function takes the rest."""
DRAWS = "a sample draws random numbers"


class CachedReads:
    """Reads samples for one loader, and remembers them in `self.samples`."""

    def __init__(self) -> None:
        self.samples: MutableMapping[int, Any] = {}
        self.off: str | None = None
        """Why nothing is cached any more, for good."""
        self._count = 0
        """The number of samples in the dataset."""
        self._batches = self._first_checks = self._uncompared = self._hits = self._changes = 0
        self._stacked = False
        self._state: list[tuple[str, Any]] | None = None
        self._glance: samples.Glance | None = None
        self._closely = True
        self._read_s = self._collate_s = 0.0

    @property
    def reads(self) -> bool:
        """Whether it serves samples at present."""
        raise NotImplementedError

    def stop(self, reason: str) -> None:
        """Keep nothing any more, for good."""
        raise NotImplementedError

    def drop(self) -> None:
        """Let nothing be served that was read until now."""
        self._glance = self._state = None

    def answered(self, requests: int, hits: int) -> None:
        """A batch was read, of which so many samples came from the cache."""
        self._batches += 1

    def added(self, fresh: list[Any]) -> None:
        """These copies were added: stop if all samples would take too much memory."""
        raise NotImplementedError

    def take(self, dataset: Any, indices: list[int], stacked: bool) -> Any:
        """The samples, from memory where they are cached; errors of the dataset are passed on."""
        if stacked != self._stacked:  # the program has set another collate function
            self.drop()
            self._stacked = stacked
        due = self._due(indices)
        self._safely(self._look, dataset, bool(due))
        for index in due:
            if index in self.samples:
                self._safely(self._compare, dataset, index)
        cached = {index: self.samples[index] for index in indices if index in self.samples}
        missing = [index for index in indices if index not in cached]
        fresh = iter(self._read(dataset, missing) if missing else ())
        self.answered(len(indices), len(indices) - len(missing))
        return [self._given(cached[i]) if i in cached else next(fresh) for i in indices]

    def timed(self, read_s: float, collate_s: float) -> None:
        """A batch took so many seconds to read, with the cache's own work, and to collate."""
        if self._batches > TIMED:
            return
        self._read_s, self._collate_s = self._read_s + read_s, self._collate_s + collate_s
        load_s = self._read_s + self._collate_s
        if self._batches == TIMED and self._read_s < LITTLE * load_s and load_s > TIMED * LONG_S:
            share = self._read_s / load_s
            self.stop(f"reading samples is {share:.0%} of loading, the rest collates them")

    def _given(self, sample: Any) -> Any:
        return sample if self._stacked else samples.copied(sample, stacked=False)

    def _read(self, dataset: Any, indices: list[int]) -> Any:
        if self.off is not None:
            return _load(dataset, indices)
        before = drawn()
        fresh = _load(dataset, indices)
        if drawn() != before:
            self.stop(DRAWS)
        else:
            self._safely(self._keep, dataset, indices, fresh)
        return fresh

    def _keep(self, dataset: Any, indices: list[int], fresh: Any) -> None:
        new_state = state(dataset)
        if new_state != self._state:
            self._changed(new_state)
            return
        added = []
        for index, sample in zip(indices, fresh, strict=True):
            if index not in self.samples:
                copy = self.samples[index] = samples.copied(sample, self._stacked)
                added.append(copy)
        self.added(added)
        self._uncompared += len(indices)
        due = self._uncompared >= min(self._count // CHECKS, len(self.samples))
        if due and self.off is None:
            self._uncompared = 0
            self._compare(dataset, indices[0], fresh[0])

    def _safely(self, action: Callable[..., None], *args: Any) -> None:
        if self.off is not None:
            return
        try:
            action(*args)
        except samples.Uncopyable as reason:
            self.stop(str(reason))
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")

    # Whether they are still true --------------------------------------------------------------

    def _due(self, indices: list[int]) -> list[int]:
        """Which of the cached samples are to be read once more."""
        due = []
        for index in indices:
            if index in self.samples:
                self._hits += 1
                if self._first_checks or self._hits % CHECK_EVERY == 0:
                    self._first_checks = max(0, self._first_checks - 1)
                    due.append(index)
        return due

    def _compare(self, dataset: Any, index: int, first: Any = None) -> None:
        """Read one sample again. Raises Uncopyable where the result differs."""
        before, restore = drawn(), random_state([])
        try:
            (second,) = _load(dataset, [index])
        finally:
            if draws := drawn() != before:
                restore()
        if draws:
            raise samples.Uncopyable(DRAWS)
        if state(dataset) != self._state:
            raise samples.Uncopyable("the dataset changes as it is read")
        first_places = [place for place in samples.places(first) if place]
        shared = set(first_places) & set(samples.places(second))
        if shared and (not self._stacked or shared == set(first_places)):
            raise samples.Uncopyable("the samples are in memory already")
        if len(set(first_places)) < len(first_places) and not self._stacked:
            raise samples.Uncopyable("the parts of a sample share memory")
        if not samples.same(samples.copied(second, self._stacked), self.samples[index]):
            raise samples.Uncopyable(f"sample {index} came out different when it was read again")

    def _look(self, dataset: Any, closely: bool) -> None:
        """Forget the samples if the program has changed the dataset."""
        closely = closely or self._closely
        if self._glance is not None and not closely and self._glance.untouched():
            return
        new_state = state(dataset)
        if self._state is not None and new_state != self._state:
            self._changed(new_state)
        self._state = new_state
        self._glance, self._closely = samples.Glance(dataset), False

    def _changed(self, new_state: list[tuple[str, Any]]) -> None:
        pairs = zip(new_state, self._state or [], strict=False)
        path = next((new[0] for new, old in pairs if new != old), "")
        self.drop()
        self._state = new_state
        self._changes += 1
        if self._changes > PATIENCE:
            raise samples.Uncopyable(f"the dataset changes again and again (dataset{path})")


class CachingFetcher:
    """Replaces an iterator's `_MapDatasetFetcher`, which it holds."""

    def __init__(self, plain: Any, cache: CachedReads) -> None:
        self.plain, self.cache = plain, cache
        self._stacked = bool(plain.auto_collation) and samples.collates_by_default(plain.collate_fn)

    def fetch(self, indices: Any) -> Any:
        plain = self.plain
        numbers = indices if plain.auto_collation else [indices]
        if not self.cache.reads or not numbers:
            return plain.fetch(indices)
        if type(numbers) is not list or not all(map(_is_number, numbers)):
            self.cache.stop("the sampler gives something other than numbers")
            return plain.fetch(indices)
        began = time.perf_counter()
        rows = self.cache.take(plain.dataset, numbers, self._stacked)
        read = time.perf_counter()
        batch = plain.collate_fn(rows if plain.auto_collation else rows[0])
        self.cache.timed(read - began, time.perf_counter() - read)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not yet there: an object being copied
            raise AttributeError(name)
        return getattr(self.plain, name)


def _is_number(index: Any) -> bool:
    kind = type(index)
    return kind is int or (kind.__module__ == "numpy" and kind.__name__ == "int64")


def _load(dataset: Any, indices: list[int]) -> Any:
    """Collate as PyTorch's own fetcher does."""
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]
