"""Data sets held as whole tensors: batches by indexing, with no Python code per sample."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from flatout_agent.limits import local_processes
from flatout_agent.speedups import nests
from flatout_train.errors import UsageError
from flatout_train.loader.seeding import drawn_since

HOST_SHARE = 0.5
"""Largest share of the free host memory for a cache that was not requested explicitly."""
DEVICE_SHARE = 0.25
"""The same for device memory: the model and its activations may not be allocated yet."""


class Columns:
    """A data set as a nest of tensors [samples, ...]; a batch is the same nest with some rows."""

    def __init__(self, nest: Any, rows: Tensor | None = None) -> None:
        self.nest, self.rows = nest, rows
        self.tensors = list(nests.tensors(nest))
        self.device = self.tensors[0].device

    def __len__(self) -> int:
        return len(self.tensors[0]) if self.rows is None else len(self.rows)

    @property
    def nbytes(self) -> int:
        """Size of all selectable rows in bytes."""
        return sum(len(self) * row_bytes(tensor) for tensor in self.tensors)

    def to(self, device: torch.device) -> Columns:
        """All selectable rows, on `device`."""
        return Columns(nests.change(self.nest, lambda tensor: self._all(tensor).to(device)))

    def _all(self, tensor: Tensor) -> Tensor:
        return tensor if self.rows is None else tensor.index_select(0, self.rows.to(tensor.device))

    def take(self, indices: Tensor, pin: bool = False) -> Any:
        """The batch of these samples, as new tensors; `pin`: in page-locked host memory."""
        wanted = indices if self.rows is None else self.rows[indices]
        if self.device.type == "cpu":
            return nests.change(self.nest, lambda tensor: _rows(tensor, wanted, pin))
        if pin:
            wanted = wanted.pin_memory()
        wanted = wanted.to(self.device, non_blocking=pin)
        return nests.change(self.nest, lambda tensor: tensor.index_select(0, wanted))


def _rows(tensor: Tensor, wanted: Tensor, pin: bool) -> Tensor:
    if not pin:
        return tensor.index_select(0, wanted)
    out = torch.empty((len(wanted), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
    return torch.index_select(tensor, 0, wanted, out=out)


def row_bytes(tensor: Tensor) -> int:
    """Bytes of one row of a tensor [samples, ...]."""
    return tensor.element_size() * (tensor[:1].numel() if len(tensor) else 0)


def columns_of(dataset: Any) -> Columns | None:
    """A data set that consists of tensors: TensorDataset, a Subset of one, tensors, arrays.

    A tensor or array has one sample per row; in a tuple or dict of them, samples have several
    parts. None: it does not consist of tensors. Raises UsageError where parts differ in length.
    """
    if type(dataset) is Subset:
        inner = columns_of(dataset.dataset)
        if inner is None:
            return None
        rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        return Columns(inner.nest, rows if inner.rows is None else inner.rows[rows])
    if type(dataset) is TensorDataset:
        return Columns(list(dataset.tensors))
    if _is_array(dataset):
        return Columns(_tensor(dataset))
    if isinstance(dataset, tuple) and dataset and all(map(_is_array, dataset)):
        parts = [_tensor(part) for part in dataset]
        return _even(Columns(dataset._make(parts) if hasattr(dataset, "_make") else parts))
    if isinstance(dataset, dict) and dataset and all(map(_is_array, dataset.values())):
        return _even(Columns({key: _tensor(part) for key, part in dataset.items()}))
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
            try:
                tensor = torch.as_tensor(value)
            except TypeError as error:
                raise UsageError(
                    f"an array of {value.dtype} cannot become a tensor: convert it to a numeric "
                    "type that torch supports"
                ) from error
    if tensor.dim() == 0:
        raise UsageError("the data set is 0-d: pass a tensor or array with one sample per row")
    return tensor


def _even(columns: Columns) -> Columns:
    lengths = [len(tensor) for tensor in columns.tensors]
    if len(set(lengths)) > 1:
        raise UsageError(
            f"the parts of the data set have different numbers of samples ({lengths}): make them "
            "equally long"
        )
    return columns


class SampleCache:
    """All samples of a map-style data set in host memory, filled as they are loaded.

    `shared`: in shared memory, so that loader workers fill it and read from it together.
    """

    def __init__(self, batch: Any, samples: int, shared: bool) -> None:
        """`batch`: any batch of the data set, for its tensors' types and shapes."""
        self.columns = Columns(nests.change(batch, lambda part: _room(part, samples, shared)))
        self._filled = torch.zeros(samples, dtype=torch.bool)
        self._trouble = torch.zeros(1, dtype=torch.uint8)
        if shared:
            self._filled.share_memory_()  # type: ignore[no-untyped-call]
            self._trouble.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def complete(self) -> bool:
        return bool(self._filled.all()) and self.holds

    @property
    def holds(self) -> bool:
        """Whether the cache is valid: False once a sample is random, or of another shape."""
        return not self._trouble.item()

    @property
    def trouble(self) -> str | None:
        """Why the cache is invalid; None: it is valid."""
        code = int(self._trouble.item())
        return (None, "a sample draws random numbers", "samples differ in shape or type")[code]

    def batch(
        self, numbers: list[int], seed: int, load: Callable[[list[int]], Any], own: list[Any]
    ) -> Any:
        """These samples from the cache; missing ones are loaded and stored.

        The random generators were seeded with `seed` just before; `own` are the data set's.
        """
        wanted = torch.tensor(numbers)
        missing = wanted[~self._filled[wanted]]
        if not len(missing):
            return self.columns.take(wanted)
        fresh = load(missing.tolist())
        if drawn_since(seed, own):
            self._trouble[0] = 1
        elif not self.put(missing, fresh):
            self._trouble[0] = 2
        if len(missing) == len(wanted):
            return fresh
        return self.columns.take(wanted) if self.holds else load(numbers)

    def put(self, numbers: Tensor, batch: Any) -> bool:
        """Store these samples. Returns False where types or shapes differ from the others'."""
        parts = list(nests.tensors(batch))
        for part, column in zip(parts, self.columns.tensors, strict=False):
            if part.dtype != column.dtype or part.shape[1:] != column.shape[1:]:
                return False
        if len(parts) != len(self.columns.tensors):
            return False
        for part, column in zip(parts, self.columns.tensors, strict=True):
            column[numbers] = part
        self._filled[numbers] = True
        return True


def _room(part: Tensor, samples: int, shared: bool) -> Tensor:
    shape = (samples, *part.shape[1:])
    if not shared:
        return torch.empty(shape, dtype=part.dtype)
    # Not share_memory_(), which would write all of it: pages are allocated as they are filled.
    size = max(1, samples * row_bytes(part))
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    room: Tensor = torch.empty(0, dtype=part.dtype)
    return room.set_(storage, 0, shape)  # type: ignore[call-overload,no-any-return]


def cacheable(batch: Any) -> str | None:
    """Why samples of this batch cannot be cached; None: it consists of tensors on the CPU."""
    parts = nests.leaves(batch, lambda value: not (isinstance(value, _HOLDERS) and value))
    return next((reason for reason in map(_not_a_row, parts) if reason is not None), None)


_HOLDERS = (Mapping, list, tuple)


def _not_a_row(part: Any) -> str | None:
    if isinstance(part, Tensor):
        plain = part.device.type == "cpu" and part.layout is torch.strided and part.dim()
        return None if plain else f"a batch holds a tensor on {part.device}, {part.layout}"
    if isinstance(part, _HOLDERS):
        return "a batch holds an empty container"
    return f"a batch holds {type(part).__name__}, not only tensors"


def sample_bytes(batch: Any) -> int:
    """Bytes of one sample, from the tensors of a batch."""
    return sum(row_bytes(tensor) for tensor in nests.tensors(batch) if tensor.dim())


def shared_memory() -> int | None:
    """Free bytes of shared memory, for this process; None: there is no such limit."""
    if sys.platform != "linux":
        return None
    try:
        return shutil.disk_usage("/dev/shm").free // local_processes()
    except OSError:
        return None


def device_memory(device: torch.device) -> int | None:
    """Free bytes on a CUDA device; None: unknown."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.mem_get_info(device)[0])
