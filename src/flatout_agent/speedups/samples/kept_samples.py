"""Copies of a dataset's samples, handed to the collate function while they are known to be valid.

There is one `KeptSamples` per loader. It reads for the program only between `begin` and `rest`. Its
copies outlast the rest, until `forget` is called or the loader is freed.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.limits import spare_memory
from flatout_agent.speedups.samples import samples
from flatout_agent.speedups.workers.reachable import state

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job

SHARE = 0.25
"""Share of the free memory; the model's activations and the program's other data come later."""
CHECKS = 16
"""Samples read twice in each epoch ..."""
CHECK_EVERY = 61
"""... and then one in this many; a prime, so that each epoch checks other samples."""
PATIENCE = 2
"""A dataset may open its file on the first read: its attributes may change this many times."""
READY_SHARE = 0.95
"""At this share of hits, the samples still to be read make no difference."""
LATELY = 20
"""The number of batches over which the share is computed."""
TIMED, LITTLE, LONG_S = 8, 0.1, 0.005
"""If the first batches, this many, take at least this many seconds each, and reading the samples is
less than this share of it, the cache is given up: the collate function takes the rest."""
DRAWS = "a sample draws random numbers"


def of_loader(job: Job, loader: torch.utils.data.DataLoader[Any]) -> KeptSamples:
    """The loader's kept samples, if they were to last; otherwise a new, empty cache."""
    cache = _caches.get(loader)
    if cache is None or cache.job is not job or not cache.lasting:
        cache = _caches[loader] = KeptSamples(job, loader)
    return cache


def of_job(job: Job) -> list[KeptSamples]:
    """The caches of all loaders of this program."""
    return [cache for cache in _caches.values() if cache.job is job]


class KeptSamples:
    """One loader's samples, and their state."""

    def __init__(self, job: Job, loader: torch.utils.data.DataLoader[Any]) -> None:
        self.job = job
        self._loader = weakref.ref(loader, lambda _: self._drop())
        self.on, self.lasting = False, True
        self.off: str | None = None
        """Why nothing is cached any more, for good."""
        self.samples: dict[int, Any] = {}
        self.bytes = self.expected = self.peak = self.served = 0
        self._count = 0
        self._room = self._requests = self._batches = 0
        self._first_checks = self._uncompared = self._hits = self._changes = 0
        self._stacked = False
        self._state: list[tuple[str, Any]] | None = None
        self._glance: samples.Glance | None = None
        self._closely = True
        self._lately: deque[tuple[int, int]] = deque(maxlen=LATELY)
        self._read_s = self._collate_s = 0.0

    # On and off -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Serve the program's reads, in running iterators and in later ones."""
        self.on = True
        self._count = self._length()
        # A comparison of speeds skips the first step after a switch, so only that much is checked.
        self._take_over(math.ceil(self._batch_size()) if self._batches else CHECKS)

    def rest(self) -> None:
        """The program reads by itself; the samples stay if they are to last."""
        self.on = False
        self._put_back()
        if not self.lasting:
            self._drop()

    def forget(self) -> None:
        """Let nothing outlast the next rest."""
        self.lasting = False
        if not self.on:
            self._drop()

    def stop(self, reason: str) -> None:
        """Keep nothing any more, for good."""
        self.off = self.off or reason
        self._drop()
        self._put_back()

    def engagement(self) -> tuple[bool, str]:
        if self.off is not None:
            return False, self.off
        if not self.served:
            return False, "no sample was asked for a second time"
        return True, f"{self.served} samples from memory ({self.peak / 1e6:.1f} MB)"

    def batches_to_ready(self) -> int:
        """Batches until each sample of a pass was read once, as far as known."""
        loader = self._loader()
        if loader is None or self.off is not None:
            return 0
        if not self._batches and not self._iterators():
            return 0  # maybe for validation, whose duration does not depend on the steps
        requests, hits = (sum(numbers) for numbers in zip(*self._lately, (0, 0), strict=True))
        if len(self._lately) == LATELY and hits >= READY_SHARE * requests:
            return 0
        missing = self._pass(loader) - len(self.samples)
        return max(0, math.ceil(missing / self._batch_size()))

    def _length(self) -> int:
        """The number of samples in the dataset, which the program may have changed meanwhile."""
        loader = self._loader()
        dataset: Any = loader.dataset if loader is not None else ()
        return len(dataset)

    def _batch_size(self) -> float:
        loader = self._loader()
        if self._batches:
            return self._requests / self._batches
        return float(getattr(loader, "batch_size", None) or 1)

    def _pass(self, loader: torch.utils.data.DataLoader[Any]) -> int:
        """The number of samples that the loader requests in one pass: not all, if its sampler
        selects.
        """
        sampler: Any = loader.sampler
        counts = [self._count]
        for count in (lambda: len(sampler), lambda: len(loader) * self._batch_size()):
            with contextlib.suppress(Exception):  # endless, or the program's own
                counts.append(math.ceil(count()))
        return min(counts)

    # Iterators --------------------------------------------------------------------------------

    def layer(self, batches: Iterator[Any]) -> Iterator[Any]:
        """An iterator has just been made."""
        try:
            self._take_over()
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")
        return batches

    def _take_over(self, checks: int = CHECKS) -> None:
        """Change the fetcher of each iterator that has PyTorch's own."""
        import torch

        if not self.reads:
            return
        checks = min(checks, CHECKS, self._count // CHECKS + 1)
        self._first_checks, self._closely = max(self._first_checks, checks), True
        self._look_at_memory()
        for iterator in self._iterators():
            plain = iterator._dataset_fetcher
            kind = torch.utils.data._utils.fetch._MapDatasetFetcher
            if type(plain) is kind and "fetch" not in vars(plain):
                iterator._dataset_fetcher = KeptFetcher(plain, self)

    def _put_back(self) -> None:
        for iterator in self._iterators():
            fetcher = iterator._dataset_fetcher
            if type(fetcher) is KeptFetcher and fetcher.cache is self:
                iterator._dataset_fetcher = fetcher.plain

    @property
    def reads(self) -> bool:
        """Whether it serves samples at present."""
        return self.on and self.off is None

    def _iterators(self) -> list[Any]:
        loader = self._loader()
        return self.job.own_iterators(loader) if loader is not None else []

    # Samples ----------------------------------------------------------------------------------

    def take(self, dataset: Any, indices: list[int], stacked: bool) -> Any:
        """The samples, from memory where they are cached; errors of the dataset are passed on."""
        if stacked != self._stacked:  # the program has set another collate function
            self._drop()
            self._stacked = stacked
        due = self._due(indices)
        self._safely(self._look, dataset, bool(due))
        for index in due:
            if index in self.samples:
                self._safely(self._compare, dataset, index)
        cached = {index: self.samples[index] for index in indices if index in self.samples}
        missing = [index for index in indices if index not in cached]
        fresh = iter(self._read(dataset, missing) if missing else ())
        self._count_in(len(indices), len(indices) - len(missing))
        return [self._given(cached[i]) if i in cached else next(fresh) for i in indices]

    def _count_in(self, requests: int, hits: int) -> None:
        self.served += hits
        self._requests += requests
        self._batches += 1
        self._lately.append((requests, hits))

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
        before = samples.Randomness()
        fresh = _load(dataset, indices)
        if before.moved():
            self.stop(DRAWS)
        else:
            self._safely(self._keep, dataset, indices, fresh)
        return fresh

    def _keep(self, dataset: Any, indices: list[int], fresh: Any) -> None:
        new_state = state(dataset)
        if new_state != self._state:
            self._changed(new_state)
            return
        for index, sample in zip(indices, fresh, strict=True):
            if index not in self.samples:
                copy = self.samples[index] = samples.copied(sample, self._stacked)
                self.bytes += samples.size(copy)
        self.peak = max(self.peak, self.bytes)
        self.expected = max(self.bytes, self.bytes // len(self.samples) * self._count)
        self._look_at_memory(measure=False)
        self._uncompared += len(indices)
        due = self._uncompared >= min(self._count // CHECKS, len(self.samples))
        if due and self.off is None:
            self._uncompared = 0
            self._compare(dataset, indices[0], fresh[0])

    def _drop(self) -> None:
        self.samples, self.bytes, self.expected = {}, 0, 0
        self._glance = self._state = None
        self._lately.clear()

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
        before = samples.Randomness()
        try:
            (second,) = _load(dataset, [index])
        finally:
            if drawn := before.moved():
                before.put_back()
        if drawn:
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
        self._drop()
        self._state = new_state
        self._changes += 1
        if self._changes > PATIENCE:
            raise samples.Uncopyable(f"the dataset changes again and again (dataset{path})")

    def _look_at_memory(self, measure: bool = True) -> None:
        """Stop if all samples would take more memory than allowed."""
        if measure:
            spare, held = spare_memory() or 0, sum(cache.bytes for cache in _caches.values())
            reserved = sum(cache.expected for cache in _caches.values() if cache is not self)
            self._room = int(SHARE * (spare + held)) - reserved
        if self.expected > self._room:
            self.stop(
                f"{self._count} samples would take {self.expected / 1e6:.0f} MB, "
                f"{max(0, self._room) / 1e6:.0f} MB may be taken"
            )


_caches: weakref.WeakKeyDictionary[Any, KeptSamples] = weakref.WeakKeyDictionary()
"""The caches by loader."""


class KeptFetcher:
    """Replaces an iterator's `_MapDatasetFetcher`, which it holds."""

    def __init__(self, plain: Any, cache: KeptSamples) -> None:
        self.plain, self.cache = plain, cache
        import torch

        collate = torch.utils.data._utils.collate
        functions = collate.default_collate_fn_map.values()
        self._stacked = bool(plain.auto_collation) and (
            plain.collate_fn is collate.default_collate
            and all(function.__module__ == collate.__name__ for function in functions)
        )

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
