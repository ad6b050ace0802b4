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
from flatout_agent.ranks.loading.forms import Form
from flatout_agent.ranks.loading.streams import Draws, own_streams
from flatout_agent.replacing import replaced

Kind = Literal["whole", "prove", "own"]
"""prove: whole, and whether the ranks' parts would make the same; own: this rank's rows."""
MARK = "_flatout_tasks"
Read = Callable[[Any, Any], Any]


@dataclass
class Fetched:
    """What became of a task."""

    number: int
    kind: Kind
    data: Any
    failed: str = ""
    """own: why this rank's rows could not be read. prove: why the batch is not made of parts."""
    random: bool = False
    """Random numbers were drawn for its rows."""
    form: Form | None = None
    spent_s: float = 0.0
    """On the proof."""

    def pin_memory(self, device: Any = None) -> Fetched:
        """As torch asks for it; parts are copied once more anyway."""
        if self.kind != "own":
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

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a worker that was not forked, where this is the first thing of ours."""
        self.__dict__.update(state)
        watch_fetching()

    def own_indices(self) -> Sequence[Any]:
        """Of this rank's rows."""
        begin = sum(self.counts[: self.rank])
        indices: Sequence[Any] = self.whole[begin : begin + self.counts[self.rank]]
        return indices

    def fetched(self, fetcher: Any, read: Read) -> Fetched:
        """Do it. Errors of the program are raised but where only this rank may have them."""
        if self.kind == "whole":
            return Fetched(self.number, self.kind, read(fetcher, self.whole))
        if self.kind == "own":
            return self._own(fetcher, read)
        data, found = proof.read(fetcher, self.whole, self.counts)
        return Fetched(
            self.number, self.kind, data, found.reason, found.random, found.form, found.spent_s
        )

    def _own(self, fetcher: Any, read: Read) -> Fetched:
        data, failed, draws = None, "", Draws()
        try:
            with own_streams(self.rank, fetcher.dataset, fetcher.collate_fn) as draws, apart():
                data = read(fetcher, self.own_indices())
        except Exception as error:
            failed = f"reading a part of a batch failed: {type(error).__name__}: {error}"[:300]
        return Fetched(self.number, self.kind, data, failed, draws.seen)


apart: Callable[[], AbstractContextManager[Any]] = nullcontext
"""What this rank's rows are read in: nothing that a dataset does there is seen by other ranks."""


def watch_fetching() -> None:
    """Let torch's fetcher of datasets that are asked by index do tasks as well."""
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
    return torch.utils.data._utils.pin_memory.pin_memory(data, device)
