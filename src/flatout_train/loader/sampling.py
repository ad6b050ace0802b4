"""The samples of the next batch: a function of (seed, epoch, position), so it can be resumed.

A position counts samples of the epoch over all ranks, in the epoch's order. Each step takes
`batch_size x world size` samples from there, and rank r gets every world-size-th of them from the
r-th on: the same shares as torch's `DistributedSampler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout_train.errors import UsageError
from flatout_train.loader.seeding import seed_for, seeded


@dataclass(frozen=True, slots=True)
class Request:
    """One batch to load: everything that a worker needs to know."""

    indices: list[Any]
    seed: int
    end: int
    """Position in the epoch after this batch."""


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of processes that train together."""

    rank: int = 0
    size: int = 1


def world() -> World:
    """The rank and the number of ranks of `torch.distributed`, if it is initialised."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return World()
    return World(distributed.get_rank(), distributed.get_world_size())


class Order:
    """The samples of each epoch, in batches."""

    shared_out = False
    """Whether each rank has samples of its own; else all have the same, and share them."""

    def __init__(self, samples: int, batch_size: int, seed: int, drop_last: bool) -> None:
        self.samples, self.batch_size = samples, batch_size
        self.seed, self.drop_last = seed, drop_last

    def epoch(self, epoch: int) -> Tensor | list[Any]:
        """All samples in the order of this epoch."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Settings that must be equal for a position to have the same meaning."""
        raise NotImplementedError

    def batches(self, world: World) -> int:
        """Batches per epoch for one rank."""
        group = self._group(world)
        return self.samples // group if self.drop_last else -(-self.samples // group)

    def left(self, position: int, world: World) -> bool:
        """Whether there is another batch after `position`."""
        return self.samples - position >= (self._group(world) if self.drop_last else 1)

    def padding(self, world: World) -> int:
        """The number of samples yielded twice, so that all ranks get equally many."""
        return 0 if self.drop_last or self.shared_out else -self.samples % world.size

    def requests(self, epoch: int, position: int, world: World) -> Iterator[Request]:
        """The batches of `epoch` from `position` on, for one rank."""
        order, group = self.epoch(epoch), self._group(world)
        step = 1 if self.shared_out else world.size
        first = 0 if self.shared_out else world.rank
        while self.left(position, world):
            chosen = _list(order[position : position + group])
            missing = -len(chosen) % step
            while missing > 0:
                chosen += _list(order[:missing])
                missing = -len(chosen) % step
            seed = seed_for(self.seed, "batch", epoch, position, world.rank)
            position = min(position + group, self.samples)
            yield Request(chosen[first::step], seed, position)

    def _group(self, world: World) -> int:
        return self.batch_size * (1 if self.shared_out else world.size)


class IndexOrder(Order):
    """The indices 0 ... samples - 1: in order, or shuffled."""

    def __init__(
        self,
        samples: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(samples, batch_size, seed, drop_last)
        self.shuffle = shuffle

    def epoch(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.samples)
        generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch))
        return torch.randperm(self.samples, generator=generator)

    def identity(self) -> dict[str, Any]:
        return {"samples": self.samples, "shuffle": self.shuffle, "sampler": None}


class SamplerOrder(Order):
    """The indices that a user's sampler draws.

    All random numbers that it draws from the global generators, and from its own `generator`,
    follow from (seed, epoch). Every rank draws the same indices and takes its share, but a sampler
    that knows its rank (`DistributedSampler`) yields that rank's indices itself.
    """

    def __init__(
        self, sampler: Iterable[Any], batch_size: int, *, seed: int = 0, drop_last: bool = False
    ) -> None:
        super().__init__(_length(sampler), batch_size, seed, drop_last)
        self.sampler = sampler
        self.shared_out = hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")

    def epoch(self, epoch: int) -> list[Any]:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        own = getattr(self.sampler, "generator", None)
        seed = seed_for(self.seed, "sampler", epoch)
        with seeded(seed, [own] if isinstance(own, torch.Generator) else []):
            drawn = list(self.sampler)
        if len(drawn) < self.samples:
            raise UsageError(
                f"the sampler yielded {len(drawn)} indices, but its length is {self.samples}: "
                "correct its __len__ or its __iter__"
            )
        return drawn

    def identity(self) -> dict[str, Any]:
        name = type(self.sampler).__name__
        return {"samples": self.samples, "shuffle": False, "sampler": name}


def _list(indices: Tensor | list[Any]) -> list[Any]:
    return indices.tolist() if isinstance(indices, Tensor) else indices


def _length(sampler: Iterable[Any]) -> int:
    try:
        return len(sampler)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(
            f"the sampler {type(sampler).__name__} has no length: add a __len__, or pass an "
            "IterableDataset that yields the samples themselves"
        ) from error
