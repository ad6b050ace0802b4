"""Reads a whole batch as torch does, and finds out whether the ranks' parts would make the same.

The samples are read once: what is compared is what the collate function makes of all of them and
of each rank's. How long it takes does not count as reading.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from flatout_agent.ranks.loading.forms import Form, Uncut, form_of
from flatout_agent.ranks.loading.streams import Streams, held_generators
from flatout_agent.speedups.samples import samples
from flatout_agent.speedups.samples.samples import Uncopyable
from flatout_agent.speedups.workers.reachable import state


@dataclass
class Found:
    """What was found out."""

    form: Form | None = None
    reason: str = ""
    """Why the batch is not made of parts."""
    random: bool = False
    spent_s: float = 0.0


class _Look:
    """How the reading of one batch is looked at. Errors of ours are reasons."""

    def __init__(self, fetcher: Any, indices: Any, counts: Sequence[int]) -> None:
        self.fetcher, self.indices, self.counts = fetcher, indices, counts
        self.found = Found()
        self._at = [0, *accumulate(counts)]

    def safely(self, action: Any, *args: Any) -> Any:
        """Do a part of the work, if the ones before have found nothing against it."""
        began = time.perf_counter()
        try:
            return action(*args) if not self.found.reason else None
        except (Uncut, Uncopyable) as reason:
            self.found.reason = str(reason)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.found.reason = f"a part of its rows cannot be collated: {reason}"[:300]
        finally:
            self.found.spent_s += time.perf_counter() - began
        return None

    def numbers(self) -> dict[str, str]:
        """What the dataset counts."""
        held = state(self.fetcher.dataset)
        return {path: repr(value) for path, value in held if type(value) in (int, float, bool)}

    def check_counts(self, before: dict[str, str] | None) -> None:
        """Raise Uncut where it counts what is read."""
        for path, value in self.numbers().items():
            if before is not None and before.get(path, value) != value:
                raise Uncut(f"its dataset counts what is read (dataset{path})")

    def parts(self, rows: Any) -> list[list[Any]]:
        """Each rank's samples; copies, where the collate function may change them."""
        if type(rows) is not list or len(rows) != sum(self.counts):
            raise Uncut("its dataset reads batches in its own way")
        if self.fetcher.collate_fn is not torch.utils.data.default_collate:
            rows = [samples.copied(row, stacked=True) for row in rows]
        return [rows[begin:end] for begin, end in zip(self._at, self._at[1:], strict=False)]

    def check_reading(self, rows: list[Any]) -> None:
        """Raise Uncut where a dataset that reads many samples at once reads others in parts."""
        if not getattr(self.fetcher.dataset, "__getitems__", None):
            return
        if self.found.random:
            raise Uncut("its dataset reads batches at once, with random numbers")
        for begin, end in zip(self._at, self._at[1:], strict=False):
            again = self.fetcher.dataset.__getitems__(self.indices[begin:end])
            if not samples.same(list(again), rows[begin:end]):
                raise Uncut("its dataset reads batches at once, and its rows depend on each other")

    def compare(self, batch: Any, parts: list[list[Any]]) -> None:
        """Collate each rank's samples, and see whether they make the batch."""
        quiet = io.StringIO()  # what the program prints while it collates, it prints once
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            made = [self.fetcher.collate_fn(part) for part in parts]
        self.found.form = form_of(batch, made, self.counts)


def read(fetcher: Any, indices: Any, counts: Sequence[int]) -> tuple[Any, Found]:
    """The whole batch, and what was found out. Raises what the program's own code raises."""
    look = _Look(fetcher, indices, counts)
    generators = look.safely(held_generators, fetcher.dataset, fetcher.collate_fn) or []
    numbers, before = look.safely(look.numbers), _states(look, generators)
    rows = _samples(fetcher.dataset, indices)
    look.found.random = before.moved()
    look.safely(look.check_counts, numbers)
    look.safely(look.check_reading, rows)
    parts = look.safely(look.parts, rows)
    held, between = look.safely(state, fetcher.collate_fn), _states(look, generators)
    batch = fetcher.collate_fn(rows)
    after = _states(look, generators)
    look.safely(_check_collate, between, held, fetcher.collate_fn)
    look.safely(look.compare, batch, parts)
    after.put_back()
    return batch, look.found


def _states(look: _Look, generators: list[Any]) -> Streams:
    return look.safely(Streams, generators) or Streams([])


def _check_collate(before: Streams, held: Any, collate: Any) -> None:
    if before.moved():
        raise Uncut("its collate function draws random numbers")
    if state(collate) != held:
        raise Uncut("its collate function keeps what it has seen")


def _samples(dataset: Any, indices: Any) -> Any:
    """As torch's own fetcher reads them."""
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]
