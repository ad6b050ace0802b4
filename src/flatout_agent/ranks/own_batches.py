"""A loader whose every batch is this rank's part of the batch that one process would load.

Frameworks divide the data set, so the global batch is larger than the script's by the number of
ranks, and its order differs. Here all ranks use the script's own sampler, and each takes its rows.
The order stays that of one process because each epoch begins with rank 0's random numbers.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from flatout_agent.ranks.refusal import Refused


class OwnBatches(BatchSampler):
    """The rank's part of each batch of `batch_sampler`; `batch_size` stays that of all ranks.

    The last batch of an epoch may be shorter. It is filled up with its own first rows until it can
    be divided, as DistributedSampler does, since all ranks must have equally many rows.
    """

    split_batches = True
    """Accelerate reads this from its own samplers: each batch is divided, none is left to
    others."""

    def __init__(self, batch_sampler: Any, rank: int, size: int) -> None:
        own: Any = self  # torch's class types them more narrowly than samplers are
        self.batch_sampler = batch_sampler
        own.sampler = getattr(batch_sampler, "sampler", None)
        own.batch_size = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        self.rank, self.size = rank, size

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        common_random_numbers()
        for batch in self.batch_sampler:
            yield own_part(list(batch), self.rank, self.size)

    def set_epoch(self, epoch: int) -> None:
        """Passed on to samplers that know epochs."""
        for inner in (self.batch_sampler, self.sampler):
            if hasattr(inner, "set_epoch"):
                inner.set_epoch(epoch)


def own_part(batch: list[Any], rank: int, size: int) -> list[Any]:
    """The rows of this rank, as many as of every other."""
    each = -(-len(batch) // size)
    filled = [batch[at % len(batch)] for at in range(each * size)]
    return filled[rank * each : (rank + 1) * each]


def own_loader(loader: DataLoader[Any], rank: int, size: int) -> DataLoader[Any]:
    """A loader of the same data whose batches are this rank's parts. Raises Refused."""
    if isinstance(loader.batch_sampler, OwnBatches):
        return loader
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise Refused("a loader that does not know the indices of its batches cannot be divided")
    batch_size = getattr(loader.batch_sampler, "batch_size", None)
    if batch_size is None:
        raise Refused("a loader whose batches have no fixed size cannot be divided")
    if batch_size % size:
        raise Refused(f"{size} ranks cannot divide a batch of {batch_size} evenly")
    own = copy.copy(loader)
    # torch guards this attribute of an existing loader.
    own.__dict__["batch_sampler"] = OwnBatches(loader.batch_sampler, rank, size)
    return own


def common_random_numbers() -> None:
    """Continue with rank 0's random numbers, as a sampler may draw from any of these generators."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    numpy = sys.modules.get("numpy")
    states: list[Any] = [
        torch.get_rng_state(),
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
    ]
    dist.broadcast_object_list(states, src=0)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if numpy is not None and states[2] is not None:
        numpy.random.set_state(states[2])
