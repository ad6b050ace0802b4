"""Start a loader's workers, and call its sampler when a loader without workers would call it.

A PyTorch iterator with workers takes its first indices while it is created, and starts the sampler
twice. So the program's random numbers come in another order than without workers: between
`iter(loader)` and the first batch, `zip(loader, other)` draws for the other loader. Here the
sampler is started once, the workers get indices when the program asks for its first batch, and an
error of the sampler is raised only after the batches before it.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.handover import Rest, fit_for_the_collector, free_of_circles

if TYPE_CHECKING:
    import torch


def with_workers(loader: torch.utils.data.DataLoader[Any]) -> Iterator[Any]:
    """The loader's own iterator, with its settings asking for workers. Raises what starting them
    raises.
    """
    twin = copy.copy(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    late = vars(twin)[name] = _Late(getattr(loader, name))
    iterator: Iterator[Any] = fit_for_the_collector(type(loader)._get_iterator(twin))
    late.started(iterator)
    return iterator


class _Late:
    """Replaces a loader's index sampler."""

    def __init__(self, indices: Any) -> None:
        self._indices = indices
        self._held = self._begun()
        self._iterator: weakref.ref[Any] | None = None

    def __iter__(self) -> _Held:
        iterator = self._iterator() if self._iterator is not None else None
        if iterator is not None:  # persistent workers begin another epoch
            self._held = self._begun()
            self._hold(iterator)
        return self._held

    def __len__(self) -> int:
        return len(self._indices)

    def started(self, iterator: Any) -> None:
        """Record the iterator that was made with it."""
        self._iterator = weakref.ref(iterator)
        self._hold(iterator)

    def _begun(self) -> _Held:
        return _Held(iter(self._indices), self.__len__)

    def _hold(self, iterator: Any) -> None:
        reference = weakref.ref(iterator)
        iterator._next_data = functools.partial(_next_data, reference, self._held)


class _Held(Rest):
    """Indices held back until they are released."""

    let_go = False

    def __next__(self) -> Any:
        if not self.let_go:
            raise StopIteration
        return super().__next__()


def _next_data(reference: weakref.ref[Any], held: _Held) -> Any:
    """Replaces the iterator's own."""
    iterator: Any = reference()
    if not held.let_go:
        held.let_go = True
        for _ in range(iterator._prefetch_factor * iterator._num_workers):
            iterator._try_put_index()
    try:
        return type(iterator)._next_data(iterator)
    except StopIteration:
        # Once handed over, the sampler's errors are the handover's.
        error = held.error() if iterator._sampler_iter is held else None
        if error is None:
            raise
    except Exception as raised:
        free_of_circles(raised)
        raise
    try:
        raise error
    finally:
        del error  # its traceback holds this frame, and so the iterator
