"""Each rank's part of the batches of one process."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from flatout_agent.ranks.own_batches import OwnBatches, own_loader, own_part
from flatout_agent.ranks.refusal import Refused

DATA = TensorDataset(torch.arange(20))


@pytest.mark.parametrize(
    ("rows", "size", "parts"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4, 0]]),  # filled up with its own first rows
        (1, 2, [[0], [0]]),
        (3, 4, [[0], [1], [2], [0]]),
    ],
)
def test_parts(rows: int, size: int, parts: list[list[int]]) -> None:
    assert [own_part(list(range(rows)), rank, size) for rank in range(size)] == parts


def test_the_ranks_together_have_the_batches_of_one_process() -> None:
    def batches(rank: int | None) -> list[list[int]]:
        torch.manual_seed(3)
        loader = DataLoader(DATA, batch_size=8, shuffle=True)
        own = loader if rank is None else own_loader(loader, rank, 2)
        assert len(own) == 3
        return [batch.tolist() for _ in range(2) for (batch,) in own]

    whole, first, second = batches(None), batches(0), batches(1)
    assert [a + b for a, b in zip(first, second, strict=True)] == whole
    assert len(whole) == 6
    assert whole[0] != whole[3]  # another order in the second epoch


def test_the_loader_of_the_program_stays_as_it_is() -> None:
    loader = DataLoader(DATA, batch_size=8, num_workers=0)
    before = loader.batch_sampler
    own = own_loader(loader, 1, 2)
    assert loader.batch_sampler is before
    assert isinstance(own.batch_sampler, OwnBatches)
    assert own.batch_sampler.batch_size == 8  # what schedules count by
    assert own_loader(own, 1, 2) is own


class _Stream(IterableDataset[int]):
    def __iter__(self) -> object:  # type: ignore[override]
        return iter(range(8))


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (DataLoader(_Stream(), batch_size=4), "does not know the indices"),
        (DataLoader(DATA, batch_size=None), "does not know the indices"),
        (DataLoader(DATA, batch_sampler=[[0, 1], [2, 3]]), "no fixed size"),
        (DataLoader(DATA, batch_size=5), "2 ranks cannot divide a batch of 5 evenly"),
    ],
)
def test_what_cannot_be_divided_is_refused(loader: DataLoader[object], why: str) -> None:
    with pytest.raises(Refused, match=why):
        own_loader(loader, 0, 2)
