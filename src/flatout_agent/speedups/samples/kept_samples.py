"""Copies of the samples that a loader without workers reads.

There is one `KeptSamples` per loader. It reads for the program only between `begin` and `rest`. Its
copies outlast the rest, until `forget` is called or the loader is freed.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.limits import CACHE_SHARE, spare_memory
from flatout_agent.speedups.samples import samples
from flatout_agent.speedups.samples.cached_reads import CHECKS, CachedReads, CachingFetcher

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job

READY_SHARE = 0.95
"""At this share of hits, the samples still to be read make no difference."""
LATELY = 20
"""The number of batches over which the share is computed."""


def of_loader(job: Job, loader: torch.utils.data.DataLoader[Any]) -> KeptSamples:
    """The loader's kept samples, if they were to last; otherwise a new, empty cache."""
    cache = _caches.get(loader)
    if cache is None or cache.job is not job or not cache.lasting:
        cache = _caches[loader] = KeptSamples(job, loader)
    return cache


def of_job(job: Job) -> list[KeptSamples]:
    """The caches of all loaders of this program."""
    return [cache for cache in _caches.values() if cache.job is job]


class KeptSamples(CachedReads):
    """One loader's samples, and their state."""

    def __init__(self, job: Job, loader: torch.utils.data.DataLoader[Any]) -> None:
        super().__init__()
        self.job = job
        self._loader = weakref.ref(loader, lambda _: self.drop())
        self.on, self.lasting = False, True
        self.bytes = self.expected = self.peak = self.served = 0
        self._room = self._requests = 0
        self._lately: deque[tuple[int, int]] = deque(maxlen=LATELY)

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
            self.drop()

    def forget(self) -> None:
        """Let nothing outlast the next rest."""
        self.lasting = False
        if not self.on:
            self.drop()

    def stop(self, reason: str) -> None:
        """Keep nothing any more, for good."""
        self.off = self.off or reason
        self.drop()
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
                iterator._dataset_fetcher = CachingFetcher(plain, self)

    def _put_back(self) -> None:
        for iterator in self._iterators():
            fetcher = iterator._dataset_fetcher
            if type(fetcher) is CachingFetcher and fetcher.cache is self:
                iterator._dataset_fetcher = fetcher.plain

    @property
    def reads(self) -> bool:
        """Whether it serves samples at present."""
        return self.on and self.off is None

    def _iterators(self) -> list[Any]:
        loader = self._loader()
        return self.job.own_iterators(loader) if loader is not None else []

    # The samples ------------------------------------------------------------------------------

    def drop(self) -> None:
        super().drop()
        self.samples, self.bytes, self.expected = {}, 0, 0
        self._lately.clear()

    def answered(self, requests: int, hits: int) -> None:
        super().answered(requests, hits)
        self.served += hits
        self._requests += requests
        self._lately.append((requests, hits))

    def added(self, fresh: list[Any]) -> None:
        self.bytes += sum(map(samples.size, fresh))
        self.peak = max(self.peak, self.bytes)
        self.expected = max(self.bytes, self.bytes // len(self.samples) * self._count)
        self._look_at_memory(measure=False)

    def _look_at_memory(self, measure: bool = True) -> None:
        """Stop if all samples would take more memory than allowed."""
        if measure:
            spare, held = spare_memory() or 0, sum(cache.bytes for cache in _caches.values())
            reserved = sum(cache.expected for cache in _caches.values() if cache is not self)
            self._room = int(CACHE_SHARE * (spare + held)) - reserved
        if self.expected > self._room:
            self.stop(
                f"{self._count} samples would take {self.expected / 1e6:.0f} MB, "
                f"{max(0, self._room) / 1e6:.0f} MB may be taken"
            )


_caches: weakref.WeakKeyDictionary[Any, KeptSamples] = weakref.WeakKeyDictionary()
"""The caches by loader."""
