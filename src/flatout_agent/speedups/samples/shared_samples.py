"""Copies of the samples that forked loader workers read, in memory that they share.

Each worker may add samples and read those of the others. `SharedSamples` is one loader's, in the
program's own process; each worker that it starts has a `WorkerSamples`.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from flatout_agent.limits import CACHE_SHARE, spare_memory
from flatout_agent.speedups.samples.cached_reads import CHECKS, CachedReads, CachingFetcher
from flatout_agent.speedups.shared_log import (
    COUNT,
    FULL,
    HITS,
    MISSES,
    OFF,
    ON,
    USED,
    Log,
    Readiness,
    made,
)
from flatout_agent.speedups.workers.fresh_workers import with_fresh_workers
from flatout_agent.speedups.workers.reachable import state

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job


def of_loader(job: Job, loader: torch.utils.data.DataLoader[Any]) -> SharedSamples:
    """The loader's shared samples, if they were to last; otherwise a new, empty cache.

    Raises Declined if there is no such memory.
    """
    cache = _caches.get(loader)
    if cache is None or cache.job is not job or not cache.lasting:
        cache = _caches[loader] = SharedSamples(job, loader)
    return cache


def of_job(job: Job) -> list[SharedSamples]:
    """The caches of all loaders of this program."""
    return [cache for cache in _caches.values() if cache.job is job]


class SharedSamples:
    """One loader's samples, in all its workers."""

    def __init__(self, job: Job, loader: torch.utils.data.DataLoader[Any]) -> None:
        self.log = made(int(CACHE_SHARE * (spare_memory() or 0)))
        self.job, self._loader = job, weakref.ref(loader)
        self.lasting = True
        self._served_before = 0
        self._readiness = Readiness(job, loader, self.log)
        self._undo_workers: Callable[[], None] | None = None

    def begin(self) -> None:
        """Serve the workers' reads. Workers of a running epoch are replaced once."""
        self.log.numbers[ON] = 1
        self._served_before = self.log.numbers[HITS]
        loader = self._loader()
        if self._undo_workers is None and loader is not None:
            self._undo_workers = with_fresh_workers(loader, self._enter_worker)
            self.job.hand_over()

    def rest(self) -> None:
        """The workers read by themselves; the samples stay if they are to last."""
        self.log.numbers[ON] = 0
        if not self.lasting:
            self._end()

    def forget(self) -> None:
        """Let nothing outlast the next rest."""
        self.lasting = False
        if not self.log.numbers[ON]:
            self._end()

    def _end(self) -> None:
        if self._undo_workers is not None:
            self._undo_workers()
            self._undo_workers = None
            self.job.hand_over()
        loader = self._loader()
        if loader is not None:
            _caches.pop(loader, None)

    def engagement(self) -> tuple[bool, str]:
        numbers = self.log.numbers
        if numbers[OFF]:
            return False, self.log.reason()
        served = numbers[HITS] - self._served_before
        if not served:
            return False, "no sample was asked for a second time"
        return True, f"{served} samples from memory ({numbers[USED] / 1e6:.1f} MB)"

    def batches_to_ready(self) -> int:
        """Batches until each sample was read once, as far as known."""
        return self._readiness.batches()

    def _enter_worker(self) -> None:
        """Called in a new worker, just before it makes its fetcher."""
        import torch

        fetch: Any = torch.utils.data._utils.fetch
        plain_kind = fetch._MapDatasetFetcher

        def made(dataset: Any, *arguments: Any) -> Any:
            fetch._MapDatasetFetcher = plain_kind
            plain = plain_kind(dataset, *arguments)
            try:
                return CachingFetcher(plain, WorkerSamples(self.log, dataset))
            except Exception as error:
                self.log.give_up(f"{type(error).__name__}: {error}")
                return plain

        fetch._MapDatasetFetcher = made


class WorkerSamples(CachedReads):
    """The samples of all workers, in one of them."""

    def __init__(self, log: Log, dataset: Any) -> None:
        import torch

        super().__init__()
        self._log = log
        self._count = len(dataset)
        worker = torch.utils.data.get_worker_info()
        workers = worker.num_workers if worker is not None else 1
        self._first_checks = min(CHECKS, self._count // CHECKS + 1) // workers + 1
        # The dataset is as it was in the program's process when this one was forked, so this is the
        # same in all workers of an epoch, and in those of the next if the program sets nothing.
        self._at_first = hash(tuple(state(dataset)))
        self.samples = Stored(log, self._key)

    def _key(self, index: int) -> bytes:
        """What a sample is stored under, with all that it may depend on."""
        depends = (int(index), self._at_first, self._changes, self._stacked)
        return hashlib.blake2b(repr(depends).encode(), digest_size=16).digest()

    @property
    def reads(self) -> bool:
        return bool(self._log.numbers[ON]) and not self._log.numbers[OFF] and self.off is None

    def stop(self, reason: str) -> None:
        if self.off is None:
            self._log.give_up(reason)
            self.off, self.samples = reason, {}

    def answered(self, requests: int, hits: int) -> None:
        super().answered(requests, hits)
        self._log.count(HITS, hits)
        self._log.count(MISSES, requests - hits)

    def added(self, fresh: list[Any]) -> None:
        numbers = self._log.numbers
        expected = numbers[USED] // max(1, numbers[COUNT]) * self._count
        if numbers[FULL] or expected > self._log.room:
            self.stop(
                f"{self._count} samples would take {expected / 1e6:.0f} MB, "
                f"{self._log.room / 1e6:.0f} MB may be taken"
            )


class Stored(MutableMapping[int, Any]):
    """Samples as bytes of a log, by the keys of their indices."""

    def __init__(self, log: Log, key: Callable[[int], bytes]) -> None:
        self._log, self._key = log, key

    def __contains__(self, index: object) -> bool:
        return self._log.get(self._key(index)) is not None  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        data = self._log.get(self._key(index))
        if data is None:
            raise KeyError(index)
        return pickle.loads(data)

    def __setitem__(self, index: int, sample: Any) -> None:
        file = io.BytesIO()
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(sample)
        if self._log.put(self._key(index), file.getvalue()):
            self._log.count(COUNT)

    def __len__(self) -> int:
        return int(self._log.numbers[COUNT])

    def __delitem__(self, index: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError


class _Pickler(pickle.Pickler):
    """Writes a tensor's bytes; torch's own way through a file takes as long as many a sample."""

    def reducer_override(self, value: Any) -> Any:
        import torch

        if type(value) is not torch.Tensor:
            return NotImplemented
        flat = value.as_strided((value.numel(),), (1,)).view(torch.uint8)
        return _tensor, (bytearray(flat.numpy()), value.dtype, value.shape, value.stride())


def _tensor(data: bytearray, dtype: Any, shape: Any, stride: Any) -> Any:
    import torch

    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    if data:
        flat = torch.frombuffer(data, dtype=dtype)
        tensor.as_strided(flat.shape, (1,)).copy_(flat)
    return tensor


_caches: weakref.WeakKeyDictionary[Any, SharedSamples] = weakref.WeakKeyDictionary()
"""The caches by loader."""
