"""Split a batch along its batch dimension, whatever its nesting.

A batch of N samples is any nest of dicts, lists, tuples, NamedTuples and dataclasses. In it

- N is the leading dimension of the first tensor that has one;
- a tensor or NumPy array with leading dimension N is cut into views; any other (0-d, `[T]`
  positions, `[1, 1, T, T]` masks) is shared by all parts. A `[T]` tensor with T == N counts as one
  number per sample: give what all samples share the shape `[1, T]`;
- a list or tuple of N strings, dicts or tensors of other leading dimensions, or a list of N
  numbers, holds one element per sample, and is cut; a tuple of numbers (a size) is shared. If it
  holds tensors with leading dimension N, those are cut, and the list is a mere container; unless
  some of them have another leading dimension and all have the same dtype and trailing shape, as
  variable lengths that happen to equal N do: then it is one tensor per sample. The batch itself, a
  NamedTuple and a list of another length are always containers;
- dicts and dataclasses are containers of fields; everything else is shared.
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

    Raises UsageError if the batch holds no such tensor.
    """
    size = _first(batch)
    if size is None:
        raise UsageError(
            f"a batch of type {type(batch).__name__} has no tensor with a batch dimension: pass "
            "a tensor, or a dict, list, tuple or dataclass of tensors"
        )
    return size


def split(batch: Any, parts: int) -> list[Any]:
    """`batch` in `parts` parts of the same types, in order, of sizes as equal as possible.

    Tensors are cut into views; only containers are copied (a PackedSequence is packed again).
    Raises UsageError if the batch has fewer samples than `parts`, or no batch dimension.
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
        return inner and not named and len(value) == rows and _is_per_sample(value, rows)

    def cut(value: Any) -> Any:
        if isinstance(value, list | tuple) and not isinstance(value, PackedSequence):
            return value[samples]
        if _samples(value) != rows:
            return value
        cut_rows = _repacked if isinstance(value, PackedSequence) else _rows
        return cut_rows(value, samples)

    return nests.change(batch, cut, is_leaf)


def _is_array(value: Any) -> bool:
    """Whether this is a NumPy array, without importing NumPy."""
    return type(value).__module__ == "numpy" and hasattr(value, "__array_interface__")


def _leading(value: Any) -> int | None:
    """Leading dimension of a tensor or an array, or None for anything else or 0-d."""
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


def _is_per_sample(value: Any, rows: int) -> bool:
    """Whether a list of as many elements as samples holds one for each sample."""
    has_all_rows = [_leading(element) == rows for element in value]
    if isinstance(value, tuple) and all(isinstance(element, int | float) for element in value):
        return False
    if not any(has_all_rows):
        return not any(
            _first(element) == rows for element in value if isinstance(element, list | tuple)
        )
    kinds = {
        (str(element.dtype), tuple(element.shape[1:])) for element in value if _leading(element)
    }
    return not all(has_all_rows) and all(_leading(element) for element in value) and len(kinds) == 1


def _repacked(value: PackedSequence, samples: slice) -> PackedSequence:
    padded, lengths = pad_packed_sequence(value, batch_first=True)
    return pack_padded_sequence(
        padded[samples],
        lengths[samples],
        batch_first=True,
        enforce_sorted=value.sorted_indices is None,
    )
