"""Loading one batch, in a worker or in the training process, with the same result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from flatout_agent.speedups import nests
from flatout_agent.speedups.workers import worker_safety
from flatout_train.errors import UsageError
from flatout_train.loader.sampling import Request
from flatout_train.loader.seeding import seeded

Collate = Callable[[list[Any]], Any]
Loaded = tuple[Any, int]
"""A batch, and the position in the epoch after it."""


class BatchedDataset(Dataset[Loaded]):
    """A map-style data set seen as batches: `batches[request]` is one of them."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self.dataset = dataset
        self.collate: Collate = default_collate if collate is None else collate
        self._own: list[Any] | None = None

    def __getitem__(self, request: Request) -> Loaded:
        if self._own is None:  # in each process its own
            parts = SimpleNamespace(dataset=self.dataset, collate_fn=self.collate)
            self._own = worker_safety.random_generators(parts)
        try:
            with seeded(request.seed, self._own):
                return self.collate(self._samples(request.indices)), request.end
        except StopIteration as error:  # DataLoader would take it for the end of the epoch
            raise RuntimeError(f"loading samples {request.indices} raised StopIteration") from error

    def _samples(self, indices: list[Any]) -> list[Any]:
        if not hasattr(self.dataset, "__getitems__"):
            return [self._sample(index) for index in indices]
        try:
            return list(self.dataset.__getitems__(indices))
        except Exception as error:
            error.add_note(f"flatout.loader: raised by dataset.__getitems__({indices})")
            raise

    def _sample(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            error.add_note(f"flatout.loader: raised by dataset[{index}]")
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None}


class RowBatches(Dataset[Loaded]):
    """A data set of whole tensors: a batch is some rows of each, with no code per sample."""

    def __init__(self, nest: Any, rows: Tensor | None = None) -> None:
        """`rows`: the rows that are the samples, or None for all."""
        self.dataset, self._rows = nest, rows
        tensors = list(nests.tensors(nest))
        self.samples = len(tensors[0]) if rows is None else len(rows)
        if len({len(tensor) for tensor in tensors}) > 1:
            raise UsageError(
                "the parts of the data set have different numbers of samples "
                f"({[len(tensor) for tensor in tensors]}): make them equally long"
            )

    def __getitem__(self, request: Request) -> Loaded:
        rows = torch.tensor(request.indices)
        rows = rows if self._rows is None else self._rows[rows]

        def taken(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows.to(tensor.device))

        return nests.change(self.dataset, taken), request.end


def rows_of(dataset: Any) -> RowBatches | None:
    """A data set that consists of tensors: a TensorDataset, tensors, NumPy arrays.

    A tensor or array has one sample per row; in a tuple or dict of them, samples have several
    parts. None if it does not consist of tensors. Raises UsageError if parts differ in length.
    """
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        return RowBatches(list(dataset.dataset.tensors), rows)
    if type(dataset) is TensorDataset:
        return RowBatches(list(dataset.tensors))
    if _is_array(dataset):
        return RowBatches(_tensor(dataset))
    if isinstance(dataset, tuple) and dataset and all(map(_is_array, dataset)):
        parts = [_tensor(part) for part in dataset]
        return RowBatches(dataset._make(parts) if hasattr(dataset, "_make") else parts)
    if isinstance(dataset, dict) and dataset and all(map(_is_array, dataset.values())):
        return RowBatches({key: _tensor(part) for key, part in dataset.items()})
    return None


def _is_array(value: Any) -> bool:
    if type(value) in (Tensor, torch.nn.Parameter):
        return True
    kinds = [kind for kind in type(value).__mro__ if kind.__name__ == "ndarray"]
    return any(kind.__module__ == "numpy" for kind in kinds)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a read-only array: it is never written to
            tensor = torch.as_tensor(value)
    if tensor.dim() == 0:
        raise UsageError("the data set is 0-d: pass a tensor or array with one sample per row")
    return tensor
