"""The samples of a batch, fetched together, as PyTorch's own fetching and collating would give
them.

Datasets of torch.utils.data are known here; those of the program are read by `row_reads`.
"""

from __future__ import annotations

import array
import bisect
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.samples.row_reads import read
from flatout_agent.speedups.samples.rows import Unreadable, selected, unlike
from flatout_agent.speedups.samples.samples import collates_by_default, combines, levels

if TYPE_CHECKING:
    import torch


def why_not_loader(loader: torch.utils.data.DataLoader[Any]) -> str | None:
    """Why the samples of this loader's batches cannot be fetched together, or None if they can."""
    import torch

    collate = torch.utils.data._utils.collate
    if loader.num_workers:
        return f"the loader has {loader.num_workers} workers, which fetch the batches"
    if loader.batch_sampler is None:
        return "batch_size=None: the loader makes no batches"
    if loader.collate_fn is not collate.default_collate:
        return "the program has a collate function of its own"
    if not collates_by_default(loader.collate_fn):
        return "the program has added to the default collate function"
    return why_not(loader.dataset)


def why_not(dataset: Any) -> str | None:
    """Why the samples of a batch cannot be fetched together, or None if they can."""
    import torch

    data = torch.utils.data
    for level in levels(dataset):
        if "__getitems__" in getattr(level, "__dict__", {}):
            return "the dataset was given a __getitems__ of its own"
        if combines(level):
            continue
        if type(level) is data.TensorDataset:
            reasons = [unlike(tensor) for tensor in level.tensors]
            if any(reasons):
                return next(reason for reason in reasons if reason)
            continue
        try:
            read(level, [0])
        except Exception as error:
            return str(error) or type(error).__name__
    return None


def together(dataset: Any, indices: list[Any]) -> Any:
    """The default collate's result for these samples. Raises Unreadable if that cannot be known."""
    import torch

    data = torch.utils.data
    kind = type(dataset)
    if kind not in (data.TensorDataset, data.Subset, data.StackDataset, data.ConcatDataset):
        return read(dataset, indices)
    numbers = _numbers(indices)
    if kind is data.TensorDataset:
        rows = torch.frombuffer(array.array("q", numbers), dtype=torch.int64)
        return [selected(tensor, rows) for tensor in dataset.tensors]
    if kind is data.Subset:
        chosen = dataset.indices
        return together(dataset.dataset, [chosen[number] for number in numbers])
    if kind is data.StackDataset:
        parts = dataset.datasets
        if isinstance(parts, dict):
            return {name: together(part, numbers) for name, part in parts.items()}
        return [together(part, numbers) for part in parts]
    return _from_several(dataset, numbers)


def _numbers(indices: list[Any]) -> list[int]:
    """Indices as `int`, since samplers over arrays and tensors give numbers of other types."""
    if set(map(type, indices)) == {int}:
        return indices
    return [_number(index) for index in indices]


def _number(index: Any) -> int:
    import torch

    kind = type(index)
    tensor = kind is torch.Tensor and index.dim() == 0 and index.dtype is torch.int64
    if kind is int or tensor or (kind.__module__ == "numpy" and kind.__name__ == "int64"):
        return int(index)
    raise Unreadable(f"the sampler gives {kind.__name__}, not a number")


def _from_several(dataset: Any, numbers: list[int]) -> Any:
    """Rows of a ConcatDataset: one fetch for each part, then restored to the requested order."""
    import torch

    if min(numbers) < 0:
        raise Unreadable("the sampler gives negative numbers")
    ends = dataset.cumulative_sizes
    places_by_part: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        places_by_part.setdefault(bisect.bisect_right(ends, number), []).append(place)
    parts = []
    for part, places in places_by_part.items():
        start = ends[part - 1] if part else 0
        chosen = [numbers[place] - start for place in places]
        parts.append(together(dataset.datasets[part], chosen))
    if len(parts) == 1:
        return parts[0]
    order = array.array("q", bytes(8 * len(numbers)))
    for row, place in enumerate(place for places in places_by_part.values() for place in places):
        order[place] = row
    return _joined(parts, torch.frombuffer(order, dtype=torch.int64))


def _joined(parts: list[Any], order: Any) -> Any:
    import torch

    first = parts[0]
    if isinstance(first, dict):
        if any(list(part) != list(first) for part in parts):
            raise Unreadable("the parts of the dataset differ in their names")
        return {name: _joined([part[name] for part in parts], order) for name in first}
    if isinstance(first, tuple) or (isinstance(first, list) and type(first[0]) is str):
        raise Unreadable("the parts of the dataset hold text")
    if isinstance(first, list):
        groups = zip(*parts, strict=True)
        return [_joined(list(group), order) for group in groups]
    forms = {(part.dtype, part.shape[1:], part.device) for part in parts}
    if len(forms) > 1:
        raise Unreadable("the parts of the dataset differ in type, shape or device")
    return torch.cat(parts).index_select(0, order.to(first.device))
