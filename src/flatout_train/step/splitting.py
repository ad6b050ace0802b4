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

import itertools
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from flatout_agent.speedups import nests
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
    return [_cut(batch, rows, slice(begin, end)) for begin, end in itertools.pairwise(bounds)]


def _first(value: Any) -> int | None:
    sizes = map(_samples, nests.leaves(value, lambda part: isinstance(part, _SIZED)))
    return next((size for size in sizes if size is not None), None)


_SIZED = (PackedSequence, torch.Tensor)


def _samples(part: Any) -> int | None:
    return int(part.batch_sizes[0]) if isinstance(part, PackedSequence) else _leading(part)


def _cut(batch: Any, rows: int, samples: slice) -> Any:
    def is_leaf(value: Any) -> bool:
        if isinstance(value, _SIZED) or _is_array(value):
            return True
        inner = isinstance(value, list | tuple) and value is not batch
        named = isinstance(value, tuple) and hasattr(value, "_make")
        return inner and not named and len(value) == rows and _one_a_sample(value, rows)

    def cut(value: Any) -> Any:
        if isinstance(value, list | tuple) and not isinstance(value, PackedSequence):
            return value[samples]
        if _samples(value) != rows:
            return value
        cut_one = _repacked if isinstance(value, PackedSequence) else _rows
        return cut_one(value, samples)

    return nests.change(batch, cut, is_leaf)


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


def _repacked(value: PackedSequence, samples: slice) -> PackedSequence:
    padded, lengths = pad_packed_sequence(value, batch_first=True)
    return pack_padded_sequence(
        padded[samples],
        lengths[samples],
        batch_first=True,
        enforce_sorted=value.sorted_indices is None,
    )
