"""Change how a loader loads in the middle of an epoch, without losing or repeating a sample.

The program holds one iterator for the whole epoch: a `Handover`. When the loader's settings change,
the rest of the sampler's indices goes to a new iterator made under the new settings; the old one
gets no more indices and is used until what it has under way is drained.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

Layers = Callable[[Any], Iterator[Any]]


class Rest:
    """In place of a sampler: the indices that an iterator under way has not yet taken."""

    def __init__(self, indices: Iterator[Any], length: Callable[[], int]) -> None:
        self._indices, self._length = indices, length

    def __iter__(self) -> Iterator[Any]:
        return self._indices

    def __len__(self) -> int:
        return self._length()


class Handover:
    """A loader's iterator as the program sees it.

    `layers` puts the job's layers around an iterator; `made` is told of each one made here.
    """

    def __init__(
        self, torch: Any, loader: Any, iterator: Any, layers: Layers, made: Callable[[Any], None]
    ) -> None:
        self._torch = torch
        self._loader = weakref.ref(loader)
        self._layers, self._made = layers, made
        self._raw = iterator
        self._batches = layers(iterator)
        self._following: Iterator[Any] | None = None

    def __iter__(self) -> Handover:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            if self._following is None:
                raise
        self._batches, self._following = self._following, None
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._raw)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not yet there: an object being copied
            raise AttributeError(name)
        return getattr(self._batches, name)

    def switch(self) -> None:
        """Go on under the loader's present settings, from the next index on."""
        loader = self._loader()
        if loader is None or self._following is not None or not hasattr(self._raw, "_sampler_iter"):
            return
        if getattr(self._raw, "_dataset_kind", 0) != 0:  # an IterableDataset has no indices
            return
        raw, self._raw._sampler_iter = self._raw._sampler_iter, iter(())
        self._raw = fresh = self._take_over(loader, raw)
        self._made(fresh)
        self._following = self._layers(fresh)

    def _take_over(self, loader: Any, indices: Iterator[Any]) -> Any:
        """A new iterator over the rest of the indices; the program's random state stays."""
        twin = copy.copy(loader)
        settings = vars(twin)
        settings.pop("_get_iterator", None)  # a boost's, which starts the loader's own
        which = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        own = getattr(loader, which)
        settings[which] = Rest(indices, lambda: len(own))
        settings.update(persistent_workers=False, _iterator=None)
        generator = loader.generator or self._torch.default_generator
        drawn = generator.get_state()
        try:
            return type(twin)._get_iterator(twin)
        except Exception:
            # Workers that cannot be started are no reason to lose the epoch.
            settings.update(num_workers=0, prefetch_factor=None, pin_memory=False)
            settings["_DataLoader__multiprocessing_context"] = None
            return type(twin)._get_iterator(twin)
        finally:
            generator.set_state(drawn)
