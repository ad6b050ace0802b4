"""Reads a whole batch as torch does, and finds out whether the ranks' parts would make the same.

The samples are read once: what is compared is what the collate function makes of all of them and
of each rank's. Where these do not go together (padding, mixing), the ranks can still send each
other the samples, and each collates all of them. How long the look takes does not count as reading.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch

from flatout_agent.ranks.loading.forms import SAMPLES, BatchForm, Uncut, form_of
from flatout_agent.ranks.loading.packing import packed
from flatout_agent.ranks.loading.streams import Streams, held_generators
from flatout_agent.speedups.samples import samples
from flatout_agent.speedups.samples.samples import Uncopyable
from flatout_agent.speedups.workers.reachable import state

OURS = "._compiled_call_impl"
"""Attribute of a model by which the layers of the agent around its call are reached."""


@dataclass
class LookFound:
    """What was found out."""

    reason: str = ""
    """Why a rank must not read its rows apart from the others."""
    random: bool = False
    """Random numbers were drawn, and not as one process would draw them."""
    form: BatchForm | None = None
    """How the batch is made of what the ranks collate; SAMPLES: of samples."""
    uncut: str = ""
    """Why it is made of samples."""
    rows: tuple[torch.Tensor, ...] = ()
    """Each rank's samples, where the batch is made of them."""
    spent_s: float = 0.0


class _Look:
    """How the reading of one batch is looked at. Errors of ours are reasons."""

    def __init__(self, fetcher: Any, indices: Any, counts: Sequence[int]) -> None:
        self.fetcher, self.indices, self.counts = fetcher, indices, counts
        self.found = LookFound()
        self._at = [0, *accumulate(counts)]

    def safely(self, action: Any, *args: Any) -> Any:
        """Do a part of the work, if the ones before have found nothing against it."""
        began = time.perf_counter()
        try:
            return action(*args) if not self.found.reason else None
        except (Uncut, Uncopyable) as reason:
            self.found.reason = str(reason)
        except Exception as error:
            self.found.reason = f"it cannot be looked at: {type(error).__name__}: {error}"[:300]
        finally:
            self.found.spent_s += time.perf_counter() - began
        return None

    def states(self, generators: list[Any]) -> Streams:
        """Of all random streams."""
        return self.safely(Streams, generators) or Streams([])

    def numbers(self) -> dict[str, str]:
        """What the dataset counts."""
        held = state(self.fetcher.dataset)
        return {
            path: repr(value)
            for path, value in held
            if type(value) in (int, float, bool) and OURS not in path
        }

    def check_counts(self, before: dict[str, str] | None) -> None:
        """Raise Uncut where it counts what is read."""
        for path, value in self.numbers().items():
            if before is not None and before.get(path, value) != value:
                raise Uncut(f"its dataset counts what is read (dataset{path})")

    def check_reading(self, rows: Any) -> None:
        """Raise Uncut where a dataset that reads many samples at once reads others in parts."""
        if type(rows) is not list or len(rows) != sum(self.counts):
            raise Uncut("its dataset reads batches in its own way")
        if not getattr(self.fetcher.dataset, "__getitems__", None):
            return
        if self.found.random:
            raise Uncut("its dataset reads batches at once, with random numbers")
        for begin, end in zip(self._at, self._at[1:], strict=False):
            again = samples_of(self.fetcher, self.indices[begin:end])
            if not samples.same(list(again), rows[begin:end]):
                raise Uncut("its dataset reads batches at once, and its rows depend on each other")

    def parts(self, rows: list[Any]) -> list[list[Any]]:
        """Each rank's samples; copies, where the collate function may change them."""
        if self.fetcher.collate_fn is not torch.utils.data.default_collate:
            rows = [samples.copied(row, stacked=True) for row in rows]
        return [rows[begin:end] for begin, end in zip(self._at, self._at[1:], strict=False)]

    def packed(self, parts: list[list[Any]]) -> tuple[torch.Tensor, ...]:
        """They, to be sent."""
        return tuple(packed_rows(part) for part in parts)

    def check_collate(self, held: Any) -> None:
        """Raise Uncut where it depends on the batches before."""
        if state(self.fetcher.collate_fn) != held:
            raise Uncut("its collate function keeps what it has seen")

    def compare(self, batch: Any, parts: list[list[Any]]) -> None:
        """Collate each rank's samples, and see whether they make the batch."""
        try:
            made = [self.fetcher.collate_fn(part) for part in parts]
            self.found.form = form_of(batch, made, self.counts)
        except Uncut as reason:
            self.found.uncut = str(reason)
        except Exception as error:
            self.found.uncut = f"{type(error).__name__}: {error}"[:300]


def read(
    fetcher: Any, indices: Any, counts: Sequence[int], collated: bool = True
) -> tuple[Any, LookFound]:
    """The whole batch, and what was found out. Raises what the program's own code raises.

    collated: what the ranks collate may be parts of it.
    """
    look = _Look(fetcher, indices, counts)
    found = look.found
    generators = look.safely(held_generators, fetcher.dataset, fetcher.collate_fn) or []
    numbers, before = look.safely(look.numbers), look.states(generators)
    with _heard() as heard:
        rows = samples_of(fetcher, indices)
    found.random = before.moved()
    look.safely(look.check_counts, numbers)
    look.safely(look.check_reading, rows)
    parts = look.safely(look.parts, rows)
    packed = look.safely(look.packed, parts) if not _stacks(fetcher) else ()
    held, between = look.safely(state, fetcher.collate_fn), look.states(generators)
    with _heard(heard) as heard:
        batch = fetcher.collate_fn(rows)
    after = look.states(generators)
    look.safely(look.check_collate, held)
    if heard.written:
        found.reason = found.reason or "its dataset or its collate function prints"
    if between.moved():
        found.uncut = "its collate function draws random numbers"
        found.random |= torch.utils.data.get_worker_info() is not None
    elif collated and not found.reason:
        look.safely(look.compare, batch, parts)
    after.put_back()
    if found.form is None and not found.reason:
        found.form, found.rows = SAMPLES, packed or look.safely(look.packed, parts) or ()
    return batch, found


class _Heard:
    """Standard output, and whether something is written to it."""

    def __init__(self, stream: Any, written: bool) -> None:
        self._stream, self.written = stream, written

    def write(self, text: str) -> Any:
        """As the program asks for it."""
        self.written = True
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _heard(before: _Heard | None = None) -> Iterator[_Heard]:
    heard = _Heard(sys.stdout, before is not None and before.written)
    with contextlib.redirect_stdout(cast(Any, heard)):
        yield heard


def _stacks(fetcher: Any) -> bool:
    return fetcher.collate_fn is torch.utils.data.default_collate


def samples_of(fetcher: Any, indices: Any) -> Any:
    """As torch's own fetcher reads them."""
    if getattr(fetcher.dataset, "__getitems__", None):
        return fetcher.dataset.__getitems__(indices)
    return [fetcher.dataset[index] for index in indices]


def packed_rows(rows: Any) -> torch.Tensor:
    """Samples to be sent; copies, since what they are a part of may be large. Raises Uncopyable."""
    return packed([[samples.copied(row, stacked=True) for row in rows]])
