"""What an iterator asks its dataset for in place of a list of indices, and what comes back.

A task is done where the dataset is read: in this process or in a worker, which knows no ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from flatout_agent.ranks.loading import proof
from flatout_agent.ranks.loading.streams import Draws, own_streams
from flatout_agent.replacing import replaced

Kind = Literal["whole", "prove", "own", "samples"]
"""prove: whole, and whether the ranks' parts would make the same; own: this rank's rows; samples:
they are not collated.
"""
MARK = "_flatout_tasks"
Read = Callable[[Any, Any], Any]


@dataclass
class Fetched:
    """What became of a task."""

    number: int
    kind: Kind
    data: Any
    failed: str = ""
    """Why this rank's rows could not be read; of a proof: why they must not be read apart."""
    random: bool = False
    """Random numbers were drawn for its rows."""
    found: proof.LookFound | None = None

    def pin_memory(self, device: Any = None) -> Fetched:
        """As torch asks for it; parts are copied once more anyway."""
        if self.kind in ("whole", "prove"):
            self.data = pinned(self.data, device)
        return self


@dataclass
class Task:
    """One batch that an iterator asks for."""

    number: int
    """From 0, of this iterator."""
    kind: Kind
    whole: Any
    """The indices of all ranks' rows, as the sampler has given them."""
    rank: int = 0
    counts: tuple[int, ...] = field(default=())
    collated: bool = True
    """prove: the ranks' parts are to be collated."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a worker that was not forked, where this is the first thing of ours."""
        self.__dict__.update(state)
        watch_fetching()

    def is_part(self) -> bool:
        """Of a batch that the ranks put together."""
        return self.kind in ("own", "samples")

    def own_indices(self) -> Sequence[Any]:
        """Of this rank's rows."""
        begin = sum(self.counts[: self.rank])
        indices: Sequence[Any] = self.whole[begin : begin + self.counts[self.rank]]
        return indices

    def fetched(self, fetcher: Any, read: Read) -> Fetched:
        """Do it. Errors of the program are raised but where only this rank may have them."""
        if self.kind == "whole":
            return Fetched(self.number, self.kind, read(fetcher, self.whole))
        if self.kind != "prove":
            return self._own(fetcher, read)
        data, found = proof.read(fetcher, self.whole, self.counts, self.collated)
        return Fetched(self.number, self.kind, data, found.reason, found.random, found)

    def _own(self, fetcher: Any, read: Read) -> Fetched:
        data, failed, draws = None, "", Draws()
        try:
            with own_streams(self.rank, fetcher.dataset, fetcher.collate_fn) as draws, apart():
                if self.kind == "own":
                    data = read(fetcher, self.own_indices())
                else:
                    data = proof.packed_rows(proof.samples_of(fetcher, self.own_indices()))
        except Exception as error:
            failed = f"reading a part of a batch failed: {type(error).__name__}: {error}"[:300]
        return Fetched(self.number, self.kind, data, failed, draws.seen)


apart: Callable[[], AbstractContextManager[Any]] = nullcontext
"""What this rank's rows are read in: nothing that a dataset does there is seen by other ranks."""


def watch_fetching() -> None:
    """Let torch's fetcher of map-style datasets do tasks as well."""
    fetcher: Any = torch.utils.data._utils.fetch._MapDatasetFetcher
    original = fetcher.fetch
    if hasattr(original, MARK):
        return

    def fetch(own: Any, possibly_batched_index: Any) -> Any:
        if type(possibly_batched_index) is not Task:
            return original(own, possibly_batched_index)
        return possibly_batched_index.fetched(own, original)

    setattr(fetch, MARK, True)
    replaced(fetcher, "fetch", fetch)


def pinned(data: Any, device: Any) -> Any:
    """In page-locked memory, as torch does it."""
    pin: Any = torch.utils.data._utils.pin_memory.pin_memory
    return pin(data, device)
