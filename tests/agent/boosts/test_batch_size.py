from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from flatout_agent.boost import Declined
from flatout_agent.boosts import batch_size as boost
from flatout_agent.job import Job

DATA: Any = list(range(50))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(100))


def _sizes(loader: Any) -> list[int]:
    return [len(batch) for batch in loader]


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_grow_and_the_samples_stay(drop_last: bool) -> None:
    loader = DataLoader(DATA, batch_size=3, shuffle=True, drop_last=drop_last)
    applied = boost.apply(Job(), loader, {"factor": 4})
    assert loader.batch_size == 12
    torch.manual_seed(1)
    batches = [batch.tolist() for batch in loader]
    assert [len(batch) for batch in batches] == [12] * 4 + ([] if drop_last else [2])
    torch.manual_seed(1)
    plain = DataLoader(DATA, batch_size=12, shuffle=True, drop_last=drop_last)
    assert batches == [batch.tolist() for batch in plain]
    assert applied.engaged() == (True, "12 samples a batch instead of 3")


def test_undo_restores_the_loader() -> None:
    loader = DataLoader(DATA, batch_size=3, shuffle=True)
    before = dict(vars(loader))
    applied = boost.apply(Job(), loader, {"factor": 2})
    assert max(_sizes(loader)) == 6
    applied.undo()
    assert vars(loader) == before
    assert max(_sizes(loader)) == 3


def test_a_shuffling_distributed_sampler_is_kept() -> None:
    sampler: Any = DistributedSampler(DATA, num_replicas=2, rank=0)
    loader = DataLoader(DATA, batch_size=3, sampler=sampler)
    boost.apply(Job(), loader, {"factor": 2})
    assert loader.sampler is sampler
    assert _sizes(loader) == [6, 6, 6, 6, 1]


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: DataLoader(DATA, batch_size=2), "does not shuffle"),
        (
            lambda: DataLoader(
                DATA, batch_size=2, sampler=DistributedSampler(DATA, 2, 0, shuffle=False)
            ),
            "does not shuffle",
        ),
        (lambda: DataLoader(Stream(), batch_size=2), "IterableDataset"),
        (
            lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 2, False)),
            "batch sampler of the script's own",
        ),
        (lambda: DataLoader(DATA, batch_size=None, sampler=SequentialSampler(DATA)), "own"),
        (lambda: DataLoader(DATA, batch_size=10, shuffle=True), "only 5 batches"),
    ],
)
def test_what_stands_against_it(loader: Any, reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        boost.apply(Job(), loader(), {"factor": 2})
