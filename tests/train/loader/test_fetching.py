"""Batches of samples, of whole tensors, and by a data set's own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import flatout
from flatout_train.errors import UsageError
from flatout_train.loader.fetching import rows_of


class Pair(NamedTuple):
    x: Any
    y: Any


X, Y = torch.arange(24.0).view(12, 2), torch.arange(12)
TENSORS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "tuple": lambda: (X, Y.numpy()),
    "named tuple": lambda: Pair(X, Y),
    "dict": lambda: {"x": X, "y": Y},
    "TensorDataset": lambda: TensorDataset(X, Y),
    "Subset": lambda: Subset(TensorDataset(X, Y), range(12)),
}


@pytest.mark.parametrize("kind", list(TENSORS))
def test_data_sets_of_tensors_are_batched_by_rows(kind: str) -> None:
    dataset = TENSORS[kind]()
    assert rows_of(dataset) is not None
    loader = flatout.loader(dataset, 5)
    samples = {"tensor": X, "array": X}.get(kind, TensorDataset(X, Y))
    for batch, other in zip(loader, DataLoader(samples, 5), strict=True):
        parts = batch.values() if kind == "dict" else batch
        assert all(map(torch.equal, parts, other))
        assert isinstance(batch, Pair) is (kind == "named tuple")
    assert loader.notes["workers"] == "0: the data set consists of tensors in memory"


def test_rows_of_a_subset_follow_its_indices_and_changes_in_place() -> None:
    data = torch.arange(6)
    loader = flatout.loader(Subset(TensorDataset(data), [5, 1, 3]), 2)
    assert [batch[0].tolist() for batch in loader] == [[5, 1], [3]]
    data += 10
    assert [batch[0].tolist() for batch in loader] == [[15, 11], [13]]


def test_what_is_no_data_set_of_tensors() -> None:
    for dataset in ([X], (X, [1]), {}, (), {"x": X, "y": [1]}):
        assert rows_of(dataset) is None
    with pytest.raises(UsageError, match="0-d"):
        rows_of(np.array(3.0))


class Together(Dataset):
    """Gives whole batches."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 6

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return indices


def test_a_data_set_that_gives_whole_batches_is_asked_for_them() -> None:
    dataset = Together()
    loader = flatout.loader(dataset, 4, workers=0, sampler=[3, 1, 0, 2, 5, 4])
    assert [batch.tolist() for batch in loader] == [[3, 1, 0, 2], [5, 4]]
    assert dataset.asked == [[3, 1, 0, 2], [5, 4]]


def test_an_error_for_a_whole_batch_names_its_indices() -> None:
    class Broken(Together):
        def __getitems__(self, indices: list[int]) -> list[int]:
            raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError) as raised:
        next(iter(flatout.loader(Broken(), 2, workers=0)))
    assert raised.value.__notes__ == ["flatout.loader: raised by dataset.__getitems__([0, 1])"]
