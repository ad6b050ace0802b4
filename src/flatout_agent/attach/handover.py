"""Change how a loader loads in the middle of an epoch, without losing or repeating a sample.

The program holds one iterator for the whole epoch: a `Handover`. If the loader's settings change,
the rest of the sampler's indices goes to a new iterator made under the new settings. The old one
gets no more indices and is used until its pending batches are drained. If only the job's layers
change, the iterator stays and the new layers are put around it.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

SETTINGS = (
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "worker_init_fn",
    "_DataLoader__multiprocessing_context",
)
"""Settings of a loader that decide how its iterators are made."""


class Layers(Protocol):
    """The part of the Job with the layers around its loaders' iterators."""

    def layers(self, loader: Any) -> tuple[Any, ...]: ...

    def layered(self, loader: Any, iterator: Iterator[Any]) -> Iterator[Any]: ...

    def iterating(self, loader: Any, iterator: Any) -> None: ...


class Rest:
    """Replaces a sampler: the indices that a running iterator has not yet taken.

    Workers take indices ahead, so an error of the sampler waits until the batches before it are
    used up.
    """

    def __init__(self, indices: Iterator[Any], length: Callable[[], int]) -> None:
        self._indices, self._length = indices, length
        self._error: Exception | None = None

    def __iter__(self) -> Rest:
        return self

    def __next__(self) -> Any:
        if self._error is None:
            try:
                return next(self._indices)
            except StopIteration:
                raise
            except Exception as error:
                self._error = error
        raise StopIteration

    def __len__(self) -> int:
        return self._length()

    def error(self) -> Exception | None:
        """The error that the sampler raised instead of its next index; returned once."""
        error, self._error = self._error, None
        return error


class Tap:
    """A valve between a loader's iterator and the layers around it: closed, it gives no more."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self.open = True

    def __iter__(self) -> Tap:
        return self

    def __next__(self) -> Any:
        if not self.open:
            raise StopIteration
        return next(self._source)

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # torch's iterators have one

    def __getattr__(self, name: str) -> Any:
        if name == "_source":  # not yet there: an object being copied
            raise AttributeError(name)
        return getattr(self._source, name)


class Handover:
    """A loader's iterator as the program sees it."""

    def __init__(self, job: Layers, loader: Any, iterator: Any) -> None:
        self._job, self._loader = job, weakref.ref(loader)
        self._raw, self._tap = iterator, Tap(iterator)
        self._rest: Rest | None = None
        self._settings, self._layers = _settings(loader), job.layers(loader)
        self._batches = job.layered(loader, self._tap)
        self._following: deque[Iterator[Any]] = deque()
        self._lock = threading.Lock()
        self._begun = self._over = self._due = False

    def __iter__(self) -> Handover:
        return self

    def __next__(self) -> Any:
        with self._lock:
            try:
                return self._next()
            finally:
                self._begun = True
                if self._due:
                    with contextlib.suppress(Exception):  # then the epoch goes on as it is
                        self._switch()

    def _next(self) -> Any:
        while True:
            try:
                return next(self._batches)
            except StopIteration:
                if not self._following:
                    break
            except Exception as raised:
                free_of_circles(raised)
                raise
            self._batches = self._following.popleft()
        error = self._rest.error() if self._rest is not None else None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        self._over = True
        raise StopIteration

    def __len__(self) -> int:
        return len(self._raw)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_batches" not in vars(self):  # an object being copied
            raise AttributeError(name)
        return getattr(self._raw if name.startswith("_") else self._batches, name)

    def switch(self) -> None:
        """Go on under the loader's present settings and layers, from the next index on.

        If nothing was requested yet, or another thread is waiting for a batch, this is done after
        the next batch, since a sampler draws its random numbers with its first index.
        """
        if not self._lock.acquire(blocking=False):
            self._due = True
            return
        try:
            if self._begun:
                self._switch()
            else:
                self._due = True
        finally:
            self._lock.release()

    def _switch(self) -> None:
        self._due = False
        loader = self._loader()
        if loader is None or self._over:
            return
        settings, layers = _settings(loader), self._job.layers(loader)
        if settings != self._settings and self._has_indices():
            following = self._take_over(loader)
        elif layers != self._layers:
            self._tap.open = False
            self._tap = Tap(self._raw)
            following = self._job.layered(loader, self._tap)
        else:
            return
        self._settings, self._layers = settings, layers
        self._following.append(following)

    def _has_indices(self) -> bool:
        """One of PyTorch's own iterators, over a map-style dataset."""
        from torch.utils.data import dataloader  # the host loads this module without torch

        kinds = (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)
        return type(self._raw) in kinds and self._raw._dataset_kind == 0

    def _take_over(self, loader: Any) -> Iterator[Any]:
        """Give a new iterator the indices that the present one has not taken."""
        raw = self._raw
        indices = raw._sampler_iter
        if isinstance(indices, Rest):
            self._rest = indices
        else:
            sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
            self._rest = Rest(indices, lambda: len(sampler))
        raw._sampler_iter = iter(())
        try:
            fresh = self._fresh(loader, self._rest)
        except BaseException:
            raw._sampler_iter = indices
            raise
        self._raw, self._tap = fresh, Tap(fresh)
        self._job.iterating(loader, fresh)
        return self._job.layered(loader, self._tap)

    def _fresh(self, loader: Any, rest: Rest) -> Any:
        """A new iterator over the rest of the indices; the program's random state stays."""
        import torch

        twin, raw = copy.copy(loader), self._raw
        settings = vars(twin)
        settings.pop("_get_iterator", None)  # a boost's function, which starts the loader's own
        settings["sampler" if loader.batch_sampler is None else "batch_sampler"] = rest
        settings.update(dataset=raw._dataset, collate_fn=raw._collate_fn)
        settings.update(persistent_workers=False, _iterator=None)
        # The seed of new workers is derived from that of the old ones, from which nothing else is
        # drawn.
        settings["generator"] = torch.Generator().manual_seed(raw._base_seed)
        try:
            return fit_for_the_collector(type(twin)._get_iterator(twin))
        except Exception:
            # If workers cannot be started, the epoch is not lost.
            settings.update(num_workers=0, prefetch_factor=None, pin_memory=False, timeout=0)
            settings["_DataLoader__multiprocessing_context"] = None
            return type(twin)._get_iterator(twin)


def free_of_circles(error: Exception) -> None:
    """Free an error that came from a worker, and its iterator, when nobody holds it.

    torch's function that re-raises it holds it in a variable, which forms a cycle through the
    traceback.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is not None and last.tb_frame.f_code.co_name == "reraise":
        last.tb_frame.clear()


def fit_for_the_collector(iterator: Any) -> Any:
    """Start the threads that feed the workers, even for workers that never get an index.

    torch starts a missing thread when it ends the workers. If the iterator is then being
    garbage-collected (in a cycle, as an error's traceback creates), Python also closes the pipe.
    The second close may then close a file of the program that has the same number by then.
    """
    for queue in getattr(iterator, "_index_queues", ()):
        with contextlib.suppress(AttributeError), queue._notempty:
            if queue._thread is None:
                queue._start_thread()
    return iterator


def _settings(loader: Any) -> tuple[Any, ...]:
    values = vars(loader)
    return tuple(values.get(name) for name in SETTINGS)
