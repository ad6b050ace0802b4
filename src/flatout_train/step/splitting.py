"""Split a batch along its batch dimension, whatever nest it is.

A batch of N samples is any nest of dicts, lists, tuples, NamedTuples and dataclasses. In it

- N is the leading dimension of the first tensor that has one;
- a tensor or NumPy array with leading dimension N is cut into views; any other (0-d, `[T]`
  positions, `[1, 1, T, T]` masks) is shared by all parts. A `[T]` tensor with T == N counts as one
  number a sample: give what all samples share the shape `[1, T]`;
- a list or tuple of N strings, dicts or tensors of other leading dimensions, or a list of N
  numbers, is one item a sample, and cut; a tuple of numbers (a size) is shared. Where it holds
  tensors with leading dimension N, those are cut, and the list is a mere holder; unless some of
  them are not of N and all have the same dtype and trailing shape, as variable lengths have that
  happen to meet N: then it is one tensor a sample. The batch itself, a NamedTuple and a list of
  another length are always holders;
- dicts and dataclasses are holders of fields; everything else is shared.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from flatout_train.errors import UsageError


def batch_size(batch: Any) -> int:
    """N: the leading dimension of the first tensor that has one (a PackedSequence: its sequences).

    Raises UsageError where the batch holds no such tensor.
    """
    found = _first(batch)
    if found is None:
        raise UsageError(
            f"a batch of type {type(batch).__name__} has no tensor with a batch dimension: batches "
            "are tensors, or dicts, lists, tuples and dataclasses of them"
        )
    return found


def split(batch: Any, parts: int) -> list[Any]:
    """`batch` in `parts` parts of the same types, in order, as even as they can be.

    Tensors are cut into views, nothing is copied but the holders (a PackedSequence is packed anew).
    Raises UsageError where the batch has fewer samples than `parts`, or no batch dimension.
    """
    rows = batch_size(batch)
    if not 1 <= parts <= rows:
        raise UsageError(f"a batch of {rows} samples cannot be split into {parts} parts")
    bounds = [rows * part // parts for part in range(parts + 1)]
    return [
        _cut(batch, rows, slice(begin, end), outermost=True)
        for begin, end in itertools.pairwise(bounds)
    ]


def _first(value: Any) -> int | None:
    if isinstance(value, PackedSequence):
        return int(value.batch_sizes[0])
    if isinstance(value, torch.Tensor):
        return int(value.shape[0]) if value.dim() else None
    return next((size for item in _items(value) if (size := _first(item)) is not None), None)


def _items(value: Any) -> list[Any]:
    """What a holder holds."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if _is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return []


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _cut(value: Any, rows: int, samples: slice, outermost: bool = False) -> Any:
    if isinstance(value, PackedSequence):
        return _repacked(value, samples) if _first(value) == rows else value
    if isinstance(value, torch.Tensor) or _is_array(value):
        return _rows(value, samples) if _leading(value) == rows else value
    if isinstance(value, Mapping):
        return _with_items(value, {key: _cut(item, rows, samples) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_cut(item, rows, samples) for item in value)
    if isinstance(value, list | tuple):
        if not outermost and len(value) == rows and _one_a_sample(value, rows):
            return value[samples]
        return type(value)([_cut(item, rows, samples) for item in value])
    if _is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        twin = copy.copy(value)
        for name in names:  # frozen dataclasses too
            object.__setattr__(twin, name, _cut(getattr(value, name), rows, samples))
        return twin
    return value


def _is_array(value: Any) -> bool:
    """A NumPy array, told without importing NumPy."""
    return type(value).__module__ == "numpy" and hasattr(value, "__array_interface__")


def _leading(value: Any) -> int | None:
    """Leading dimension of a tensor or an array; None: neither, or 0-d."""
    shape = getattr(value, "shape", ())
    return (
        int(shape[0]) if (isinstance(value, torch.Tensor) or _is_array(value)) and shape else None
    )


def _rows(value: Any, samples: slice) -> Any:
    if isinstance(value, torch.Tensor) and value.is_nested:
        chosen = list(value.unbind())[samples]
        return torch.nested.as_nested_tensor(chosen, layout=value.layout)
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return value.index_select(0, torch.arange(samples.start, samples.stop, device=value.device))
    return value[samples]


def _one_a_sample(value: Any, rows: int) -> bool:
    """Whether a list of as many items as samples has one for each of them."""
    whole = [_leading(item) == rows for item in value]
    if isinstance(value, tuple) and all(isinstance(item, int | float) for item in value):
        return False
    if not any(whole):
        return not any(_first(item) == rows for item in value if isinstance(item, list | tuple))
    kinds = {(str(item.dtype), tuple(item.shape[1:])) for item in value if _leading(item)}
    return not all(whole) and all(_leading(item) for item in value) and len(kinds) == 1


def _with_items(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if not isinstance(value, MutableMapping):
        return items
    twin = copy.copy(value)  # keeps the type, and the attributes of Hugging Face's BatchEncoding
    for key, item in items.items():
        twin[key] = item
    return twin


def _repacked(value: PackedSequence, samples: slice) -> PackedSequence:
    padded, lengths = pad_packed_sequence(value, batch_first=True)
    return pack_padded_sequence(
        padded[samples],
        lengths[samples],
        batch_first=True,
        enforce_sorted=value.sorted_indices is None,
    )
