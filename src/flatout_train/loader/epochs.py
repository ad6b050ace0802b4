"""Epochs of batches, one pass at a time, resumed at the exact batch: what both loaders share."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol

import torch

from flatout_train.errors import UsageError
from flatout_train.loader import sampling
from flatout_train.loader.sampling import World

VERSION = 2
BatchMark = dict[str, Any]
"""A position in an epoch, to be saved: only numbers, strings, lists and dicts."""
Marked = Generator[tuple[Any, BatchMark], None, None]


class BatchSource(Protocol):
    """Batches of one epoch after another."""

    def batches(self, epoch: int, mark: BatchMark | None, world: World) -> Marked:
        """The batches of `epoch` after `mark`, on the device, each with the mark after it."""

    def length(self, world: World) -> int: ...
    def left(self, mark: BatchMark, world: World) -> bool: ...
    def close(self) -> None: ...
    def identity(self) -> dict[str, Any]:
        """Settings that must be equal for a mark to have the same meaning."""


class EpochLoader:
    """Iterates a source once per epoch. `len()`: batches per epoch, for this rank."""

    name = "loader"
    """As messages call it."""

    def __init__(self, source: BatchSource, device: torch.device, seed: int) -> None:
        self.device, self.seed = device, seed
        self.notes: dict[str, str] = {}
        self._source = source
        self._epoch = 0
        self._mark: BatchMark | None = None
        self._fresh = True
        """Whether the next pass is of `_epoch`, after `_mark`; else a pass of it has begun."""
        self._passes = 0
        self._batches: weakref.ref[Marked] | None = None
        """The batches of the last pass; a weak reference, as a dropped pass releases its
        workers."""

    @property
    def epoch(self) -> int:
        """The epoch of the next batch: `for epoch in range(loader.epoch, epochs)` resumes."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass start this epoch.

        If a loaded state is in the middle of this epoch, the pass resumes there: a loop that calls
        `set_epoch(epoch)` before each pass resumes without a change.
        """
        if not (self._fresh and epoch == self._epoch):
            self._go_to(epoch, None)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that were yielded; any number of ranks can load it.

        Only numbers, strings, lists and dicts, apart from an iterable data set's own state. The
        same on every rank, except with iterable data sets.
        """
        return {
            "version": VERSION,
            "epoch": self._epoch,
            "mark": self._mark,
            "seed": self.seed,
            "order": self._source.identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the batch that follows those of `state`, as if without interruption.

        Raises UsageError if it is the state of another data set, order or seed.
        """
        version = state.get("version")
        if version != VERSION:
            raise UsageError(
                f"the {self.name}'s state has version {version!r}, this flatout reads {VERSION}: "
                "load it with the version of flatout that wrote it"
            )
        ours = {"seed": self.seed, **self._source.identity()}
        theirs = {"seed": state["seed"], **state["order"]}
        different = [name for name in ours if ours[name] != theirs.get(name)]
        if different:
            name = different[0]
            raise UsageError(
                f"the {self.name}'s state belongs to another order: {name} was "
                f"{theirs.get(name)!r}, now it is {ours[name]!r}. Create the {self.name} with the "
                "same data set and arguments"
            )
        self._go_to(int(state["epoch"]), state["mark"])

    def _go_to(self, epoch: int, mark: BatchMark | None) -> None:
        self._epoch, self._mark, self._fresh = epoch, mark, True
        self._passes += 1  # ends the current pass

    def __len__(self) -> int:
        return self._source.length(sampling.world())

    def __iter__(self) -> Iterator[Any]:
        if not self._fresh:
            self._go_to(self._epoch + 1, None)
        self._passes += 1
        return self._pass(self._epoch, self._mark, self._passes)

    def _pass(self, epoch: int, mark: BatchMark | None, number: int) -> Iterator[Any]:
        """One epoch's batches after `mark`; the loader's state counts those that were yielded."""
        world = sampling.world()
        batches = self._source.batches(epoch, mark, world)
        self._batches = weakref.ref(batches)
        while True:
            if self._passes != number:
                raise UsageError(
                    f"this pass ended when the {self.name} began another pass or its position was "
                    f"changed: a {self.name} makes one pass at a time; create a second loader for "
                    "concurrent passes"
                )
            marked = next(batches, None)
            if marked is None:
                break
            batch, mark = marked
            if self._source.left(mark, world):
                self._mark, self._fresh = mark, False
            else:
                self._go_to(epoch + 1, None)
                number = self._passes
            yield batch
        if number == self._passes and self._epoch == epoch:
            self._go_to(epoch + 1, None)

    def close(self) -> None:
        """Stop the workers; the next pass of a `flatout.loader` starts them again."""
        self._passes += 1
        batches = self._batches() if self._batches is not None else None
        if batches is not None:
            batches.close()
        self._source.close()
