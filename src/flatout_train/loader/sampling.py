"""The samples of the next batch: a function of (seed, epoch, position), so it can be resumed.

A position counts samples of the epoch over all ranks, in the epoch's order. Each step takes
`batch_size x world size` samples from there, and rank r gets every world-size-th of them from the
r-th on: the same shares as torch's `DistributedSampler`.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout_train.errors import UsageError
from flatout_train.loader import bucketing
from flatout_train.loader.seeding import seed_for, seeded

DRAWN_TOGETHER = 1024
"""Indices that a user's sampler draws under one seed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One batch to load: everything that a worker needs to know."""

    indices: list[int] | Tensor
    seed: int
    end: int
    """Position in the epoch after this batch."""
    probe: bool = False


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of processes that train together."""

    rank: int = 0
    size: int = 1


def world() -> World:
    """The rank and the number of ranks of `torch.distributed`, where it is initialised."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return World()
    return World(distributed.get_rank(), distributed.get_world_size())


class Order(Protocol):
    """The samples of each epoch, in batches."""

    samples: int

    def requests(self, epoch: int, position: int, group: int, world: World) -> Iterator[Request]:
        """The batches of `epoch` from `position` on, for one rank.

        `group`: samples per step over all ranks when the epoch began; a run that resumes with
        another number of ranks continues in the same order.
        """

    def batches(self, world: World) -> int:
        """Batches per epoch for one rank."""

    def left(self, position: int, world: World) -> bool:
        """Whether there is another batch after `position`."""

    def padding(self, world: World) -> int:
        """Samples that are yielded twice, so that all ranks get equally many."""

    def identity(self) -> dict[str, Any]:
        """What must be equal for a position to have the same meaning."""


class _Order:
    def __init__(self, samples: int, batch_size: int, drop_last: bool) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.drop_last = drop_last

    def batches(self, world: World) -> int:
        group = self.batch_size * world.size
        return self.samples // group if self.drop_last else -(-self.samples // group)

    def left(self, position: int, world: World) -> bool:
        needed = self.batch_size * world.size if self.drop_last else 1
        return self.samples - position >= needed

    def padding(self, world: World) -> int:
        return 0 if self.drop_last else -self.samples % world.size


class IndexOrder(_Order):
    """The indices 0 ... samples - 1: in order, shuffled, or in batches of similar length."""

    def __init__(
        self,
        samples: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        lengths: Tensor | None = None,
    ) -> None:
        super().__init__(samples, batch_size, drop_last)
        self.shuffle, self.seed, self.lengths = shuffle, seed, lengths

    def identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = {"shuffle": self.shuffle, "sampler": None, "lengths": None}
        if self.lengths is not None:
            identity["lengths"] = fingerprint(self.lengths)
            if self.shuffle:  # which samples come last depends on it
                identity["drop_last"] = self.drop_last
        return identity

    def epoch(self, epoch: int, group: int) -> Tensor:
        """All samples in the order of this epoch, int64 [samples]."""
        generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch))
        if self.lengths is not None:
            return bucketing.order(self.lengths, group, generator, self.shuffle, self.drop_last)
        if self.shuffle:
            return torch.randperm(self.samples, generator=generator)
        return torch.arange(self.samples)

    def requests(self, epoch: int, position: int, group: int, world: World) -> Iterator[Request]:
        order = self.epoch(epoch, group)
        step = self.batch_size * world.size
        while self.left(position, world):
            chosen = order[position : position + step]
            if len(chosen) % world.size:
                missing = world.size - len(chosen) % world.size
                chosen = torch.cat([chosen, order.repeat(-(-missing // self.samples))[:missing]])
            seed = seed_for(self.seed, "batch", epoch, position, world.rank)
            position = min(position + step, self.samples)
            yield Request(chosen[world.rank :: world.size], seed, position)


class SamplerOrder(_Order):
    """The indices that a user's sampler draws.

    All random numbers that it draws from the global generators, and from its own `generator`,
    follow from (seed, epoch). Every rank draws the same indices and takes its share, but a sampler
    that knows its rank (`DistributedSampler`) yields that rank's indices itself.
    """

    def __init__(
        self, sampler: Iterable[Any], batch_size: int, *, seed: int = 0, drop_last: bool = False
    ) -> None:
        self.shared_out = hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")
        replicas = int(sampler.num_replicas) if self.shared_out else 1  # type: ignore[attr-defined]
        super().__init__(_length(sampler) * replicas, batch_size, drop_last)
        self.sampler, self.seed = sampler, seed

    def requests(self, epoch: int, position: int, group: int, world: World) -> Iterator[Request]:
        drawn = self._drawn(epoch)
        share = world.size if self.shared_out else 1
        self._skip(drawn, position // share)
        step = self.batch_size * world.size
        while chosen := list(itertools.islice(drawn, step // share)):
            if self.drop_last and len(chosen) < step // share:
                return
            seed = seed_for(self.seed, "batch", epoch, position, world.rank)
            position = min(position + step, self.samples)
            if not self.shared_out:
                chosen = _even(chosen, world)[world.rank :: world.size]
            yield Request(chosen, seed, position)

    def identity(self) -> dict[str, Any]:
        return {"shuffle": False, "sampler": type(self.sampler).__name__, "lengths": None}

    def _skip(self, drawn: Iterator[Any], count: int) -> None:
        if sum(1 for _ in itertools.islice(drawn, count)) < count:
            raise UsageError(
                f"the sampler yielded fewer than the {count} indices that were used before: "
                "resume with the same sampler and data set"
            )

    def _drawn(self, epoch: int) -> Iterator[Any]:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        own = getattr(self.sampler, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(seed_for(self.seed, "sampler", epoch))
        indices: Iterator[Any] | None = None
        for block in itertools.count():
            with seeded(seed_for(self.seed, "sampler", epoch, block)):
                indices = iter(self.sampler) if indices is None else indices
                together = list(itertools.islice(indices, DRAWN_TOGETHER))
            yield from together
            if len(together) < DRAWN_TOGETHER:
                return


def _even(chosen: list[Any], world: World) -> list[Any]:
    missing = -len(chosen) % world.size
    return chosen + list(itertools.islice(itertools.cycle(chosen), missing))


def _length(sampler: Iterable[Any]) -> int:
    try:
        return len(sampler)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(
            f"the sampler {type(sampler).__name__} has no length: add a __len__, or pass an "
            "IterableDataset that yields the samples themselves"
        ) from error


def fingerprint(lengths: Tensor) -> str:
    """A short hash of a list of lengths: a resumed run must have the same list."""
    return hashlib.blake2b(array("q", lengths.tolist()), digest_size=8).hexdigest()
