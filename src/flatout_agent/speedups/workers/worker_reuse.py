"""Persistent loader workers that behave as if each epoch had started its own.

PyTorch's persistent workers differ from a fresh iterator in three ways that a program may notice:
an epoch after the first draws no seed from the global generator, so the next shuffle differs; a
second `iter(loader)` stops one that is still in use; and later changes to the dataset are not seen.
Here the seed is still drawn, and in the other two cases new workers are started.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.workers.reachable import state

if TYPE_CHECKING:
    import torch


class Epoch:
    """One epoch's iterator, which knows whether it came to its end."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.finished = False

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self.finished = True
            raise

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # not yet there: an object being copied
            raise AttributeError(name)
        return getattr(self._batches, name)


class _DrawsSeed:
    """The loader's own index sampler; starting it also draws what a fresh iterator would draw."""

    def __init__(self, indices: Any, generator: torch.Generator) -> None:
        self._indices, self._generator = indices, generator

    def __iter__(self) -> Iterator[Any]:
        import torch

        indices: Iterator[Any] = iter(self._indices)
        torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        return indices

    def __len__(self) -> int:
        return len(self._indices)


class Reuse:
    """Layer around a loader's iterators (`Job.wrap_batches`) that controls their reuse."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        self._loader = weakref.ref(loader)
        self._workers: weakref.ref[Any] | None = None
        self._epoch: weakref.ref[Epoch] | None = None
        self._state: list[tuple[str, Any]] = []
        self.starts = 0
        """How often worker processes were started."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        loader = self._loader()
        workers = getattr(loader, "_iterator", None)
        started_anew = self._workers is None or self._workers() is not workers
        if loader is not None and workers is not None and started_anew:
            self._take_over(loader, workers)
        epoch = Epoch(batches)
        self._epoch = weakref.ref(epoch)
        return epoch

    def _take_over(self, loader: torch.utils.data.DataLoader[Any], workers: Any) -> None:
        self.starts += 1
        self._workers = weakref.ref(workers)
        self._state = state(loader.dataset)
        workers._index_sampler = _DrawsSeed(workers._index_sampler, loader.generator)
        workers._reset = self._next_epoch  # found before the class's own method

    def _next_epoch(
        self, loader: torch.utils.data.DataLoader[Any], first_iter: bool = False
    ) -> None:
        """Replaces the workers' `_reset`, which DataLoader calls before it hands them out."""
        workers = self._workers() if self._workers is not None else None
        if workers is None or self._in_use() or state(loader.dataset) != self._state:
            loader._iterator = loader._get_iterator()  # what DataLoader.__iter__ returns next
            return
        type(workers)._reset(workers, loader, first_iter)

    def _in_use(self) -> bool:
        epoch = self._epoch() if self._epoch is not None else None
        return epoch is not None and not epoch.finished
