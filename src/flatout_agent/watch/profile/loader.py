"""Loaders while a program is profiled: their start-up times and worker processes."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent.attach.replacing import in_reverse, replaced
from flatout_agent.watch import places
from flatout_agent.watch.calls import Calls


@dataclass
class _Pass:
    """One iteration of a loader."""

    began: float
    where: str | None
    batches: int = 0
    start_s: float | None = None
    trains: bool = False


class LoaderStarts:
    """Wraps `iter(loader)` and the fetching of a batch until `remove`.

    Created before discovery installs its own hooks, removed after those.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        self._iterators: list[weakref.ref[Any]] = []
        self.begun = 0
        """The passes of all loaders."""
        self.start_s: list[float] = []
        """Seconds from `iter` to the first batch, for each pass that gave a training step its
        batch."""
        self.where: str | None = None
        """The line that started the last of these passes."""
        data = torch.utils.data
        self._loader_class = data.DataLoader
        self._iterator_class = data.dataloader._BaseDataLoaderIter
        make_iterator = self._loader_class.__iter__
        next_batch = self._iterator_class.__next__

        def __iter__(loader: torch.utils.data.DataLoader[Any]) -> Iterator[Any]:  # noqa: N807
            began = time.perf_counter()
            iterator: Iterator[Any] = make_iterator(loader)
            with contextlib.suppress(Exception):  # a loader that cannot be recorded still works
                self.begun += 1
                self._passes[loader] = _Pass(began, places.where())
                references = [reference for reference in self._iterators if reference() is not None]
                if not any(reference() is iterator for reference in references):
                    references.append(weakref.ref(iterator))
                self._iterators = references
            return iterator

        def __next__(iterator: Any) -> Any:  # noqa: N807
            self._calls.in_loader = True
            try:
                return next_batch(iterator)
            finally:
                self._calls.in_loader = False

        self.remove = in_reverse(
            [
                replaced(self._loader_class, "__iter__", __iter__),
                replaced(self._iterator_class, "__next__", __next__),
            ]
        )

    def batch(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """`loader` has given a batch."""
        current = self._passes.get(loader)
        if current is not None:
            current.batches += 1
            if current.start_s is None:
                current.start_s = time.perf_counter() - current.began

    def trains(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """The last batch of `loader` is trained on."""
        current = self._passes.get(loader)
        if current is not None and not current.trains and current.start_s is not None:
            current.trains = True
            self.start_s.append(current.start_s)
            self.where = current.where

    def left(self, loader: torch.utils.data.DataLoader[Any]) -> tuple[int, int] | None:
        """Batches until this loader's pass ends, and of a whole pass; None if unknown."""
        current = self._passes.get(loader)
        try:
            return (len(loader) - current.batches, len(loader)) if current is not None else None
        except TypeError:
            return None

    def workers(self) -> list[int]:
        """Process ids of the workers of all live iterators."""
        iterators = [iterator() for iterator in self._iterators]
        workers = [worker for iterator in iterators for worker in getattr(iterator, "_workers", ())]
        return [worker.pid for worker in workers if worker.pid is not None]
