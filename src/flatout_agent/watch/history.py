"""Memory and batch sizes of the steps so far, recorded at almost no cost and read when a program
crashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent import wire
from flatout_agent.speedups.memory_counters import allocated_bytes, resident_bytes

if TYPE_CHECKING:
    from flatout_agent.job import Job

APART = 16
"""Memory is read again after a 16th of the steps so far: about 180 times in a million steps."""
TENSORS = 4
"""The number of tensors of a batch that are counted."""


class StepHistory:
    """Memory after some of the steps, and the size of the last batch and of the largest before."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.due = 1
        """The step after which memory is read again."""
        self._read: Callable[[], int | None] | None = None
        self._steps: list[int] = []
        self._bytes: list[int] = []
        self._last: int | None = None
        self._most: int | None = None
        self._number: int | None = None
        self._loader: torch.utils.data.DataLoader[Any] | None = None

    def epoch(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """An epoch of a loader begins."""
        self._loader, self._number = loader, -1

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any) -> None:
        """A loader has given a batch."""
        if self._last is not None and (self._most is None or self._last > self._most):
            self._most = self._last
        self._last = _elements(batch)
        if loader is not self._loader:  # an evaluation came in between
            self._loader, self._number = loader, None
        elif self._number is not None:
            self._number += 1

    def step(self) -> None:
        """A step has ended after which memory is due."""
        steps = self._job.steps
        self.due = steps + max(1, steps // APART)
        if self._read is None:
            self._read = allocated_bytes if self._job.device == "cuda" else resident_bytes
        value = self._read()
        if value is not None:
            self._steps.append(steps)
            self._bytes.append(value)

    def seen(self) -> wire.HistorySeen:
        """The record of it."""
        loader = self._loader
        return wire.HistorySeen(
            steps=tuple(self._steps),
            memory_bytes=tuple(self._bytes),
            device=self._job.device,
            batch_elements=self._last,
            most_elements=self._most,
            batch=self._number,
            batch_size=loader.batch_size if loader is not None else None,
            in_order=type(getattr(loader, "sampler", None)) is torch.utils.data.SequentialSampler,
        )


def _elements(batch: Any) -> int:
    """Elements of the first few tensors, not those deeper than one level."""
    if isinstance(batch, torch.Tensor):
        return batch.numel()
    members: Iterable[Any] = ()
    if isinstance(batch, (list, tuple)):
        members = batch
    elif isinstance(batch, Mapping):
        members = batch.values()
    counted = elements = 0
    for member in members:  # in each step of a run: without a list and a generator
        if isinstance(member, torch.Tensor) and counted < TENSORS:
            counted += 1
            elements += member.numel()
    return elements
