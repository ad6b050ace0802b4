"""One value for each index of a batch, and the operations possible on each by itself."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import Any

ARRAY_KINDS = "biuf"
"""NumPy's kinds of numbers that torch also has."""
ALWAYS_CONTIGUOUS = 3
"""Stacking keeps the order of strides from four dimensions on (channels_last)."""
CONVERSIONS = (
    "float", "double", "half", "bfloat16", "long", "int", "short", "byte", "bool",
    "contiguous", "clone", "detach",
)  # fmt: skip
"""Methods of a tensor without arguments that treat each number by itself."""


OLDER = {"FloatTensor": ("float32", "fiu"), "LongTensor": ("int64", "iu")}
"""Constructors of one type: the dtype that they make, and the kinds of arrays that they take."""


class Unreadable(Exception):  # noqa: N818 - a decision with its reason, not an error
    """These samples cannot be read together."""


def numpy() -> Any:
    """NumPy, which torch imports if it is installed. Raises Unreadable."""
    module = sys.modules.get("numpy")
    if module is None:
        raise Unreadable("NumPy is not there")
    return module


@dataclass(frozen=True, eq=False)
class RowValues:
    """One value for each index of the batch."""

    data: Any
    """A tensor or an array, [batch, ...]; a list of str."""
    python: bool = False
    """The values are Python's numbers, not NumPy's."""

    @property
    def rank(self) -> int:
        """Dimensions of one row."""
        if isinstance(self.data, list):
            raise Unreadable("it computes with text")
        return int(self.data.ndim) - 1

    @property
    def is_tensor(self) -> bool:
        return hasattr(self.data, "requires_grad")

    @property
    def is_whole(self) -> bool:
        """Whether each row is one whole number."""
        import torch

        if isinstance(self.data, list) or self.rank:
            return False
        if self.is_tensor:
            whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
            return self.data.dtype in whole
        return str(self.data.dtype.kind) in "iu"


def is_plain(value: Any) -> bool:
    """Whether it is a tensor, an array or a NumPy number that holds only numbers."""
    import torch

    np = numpy()
    if isinstance(value, torch.Tensor):
        return unlike(value) is None
    plain = isinstance(value, np.generic) or type(value) is np.ndarray
    return plain and value.dtype.kind in ARRAY_KINDS


def meets_each(value: Any, rows: RowValues, rank: int) -> bool:
    """Whether `value` broadcasts with each row as it does with the batch."""
    is_tensor = hasattr(value, "requires_grad")
    return is_plain(value) and is_tensor == rows.is_tensor and value.ndim <= rank


def unlike(tensor: Any) -> str | None:
    """Why rows of this tensor must be stacked one by one, or None if `index_select` gives
    the same.
    """
    import torch

    if type(tensor) is not torch.Tensor:
        return f"the dataset holds {type(tensor).__name__}, not plain tensors"
    if tensor.requires_grad:
        return "a tensor of the dataset requires gradients"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return "a tensor of the dataset is sparse, quantized or without data"
    if tensor.is_conj() or tensor.is_neg():
        return "a tensor of the dataset is a view that is computed when it is read"
    if tensor.dim() > ALWAYS_CONTIGUOUS and not tensor.is_contiguous():
        return "a tensor of the dataset is not contiguous"
    return None


def selected(tensor: Any, rows: Any) -> Any:
    """These rows of a tensor. Raises Unreadable, IndexError."""
    reason = unlike(tensor)  # the program may have replaced it since
    if reason is not None:
        raise Unreadable(reason)
    on_device = rows if tensor.device.type == "cpu" else rows.to(tensor.device)
    return tensor.index_select(0, on_device)


def gathered(base: Any, index: Any) -> RowValues:
    """`base[i]` for each i of the index."""
    import torch

    np = numpy()
    if not isinstance(index, RowValues) or not index.is_whole or isinstance(base, RowValues):
        raise Unreadable("it looks up something other than rows by their numbers")
    numbers = np.asarray(index.data).astype(np.int64)
    if numbers.min(initial=0) < 0:
        raise Unreadable("a row is counted from the end")
    kind = type(base)
    if kind is torch.Tensor:
        return RowValues(selected(base, torch.from_numpy(numbers)))
    if kind in (np.ndarray, np.memmap):
        return RowValues(_array_rows(np.asarray(base), numbers))
    if kind in (list, tuple, range):
        return _listed([base[number] for number in numbers.tolist()])
    raise Unreadable(f"it looks up a row of {kind.__name__}")


def _array_rows(base: Any, numbers: Any) -> Any:
    """Rows of an array, in memory allocated by torch if possible."""
    import torch

    np = numpy()
    if base.dtype.kind not in ARRAY_KINDS or not base.dtype.isnative or base.dtype.itemsize > 8:
        raise Unreadable(f"an array of the dataset is of {base.dtype}")
    if base.ndim > ALWAYS_CONTIGUOUS and not base.flags.c_contiguous:
        raise Unreadable("an array of the dataset is not contiguous")
    positive = all(stride >= 0 for stride in base.strides)
    if base.flags.writeable and positive and base.dtype.kind != "u":
        return torch.from_numpy(base).index_select(0, torch.from_numpy(numbers)).numpy()
    return np.take(base, numbers, axis=0)


def _listed(items: list[Any]) -> RowValues:
    """Items of a list: numbers, text, or tensors and arrays of one shape."""
    import torch

    np = numpy()
    kinds = set(map(type, items))
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    if kind is str:
        return RowValues(items)
    if kind in (bool, int, float):
        return RowValues(
            np.array(items, dtype={bool: bool, int: np.int64, float: float}[kind]), True
        )
    if kind is torch.Tensor and not any(map(unlike, items)):
        alike = len({(item.dtype, item.shape, item.device) for item in items}) == 1
        if alike and all(item.is_contiguous() for item in items):
            return RowValues(torch.stack(items))
    if kind is np.ndarray and len({(item.dtype, item.shape) for item in items}) == 1:
        first = items[0].dtype
        if first.kind in ARRAY_KINDS and first.isnative and first.itemsize <= 8:
            return RowValues(np.stack(items))
    raise Unreadable("it looks up objects in a list")


def listed_windows(windows: list[Any]) -> RowValues:
    """Windows of a list of numbers, all of one length."""
    np = numpy()
    kinds = set(map(type, itertools.chain.from_iterable(windows)))
    if kinds != {int} and kinds != {float}:
        raise Unreadable("it looks up objects in a list")
    return RowValues(np.array(windows, dtype=np.int64 if int in kinds else np.float64), python=True)


def part(rows: RowValues, places: list[Any]) -> RowValues:
    """`row[...]` of each row."""
    if len(places) > rows.rank or not all(type(place) in (int, slice) for place in places):
        raise Unreadable("it takes a part of a row that is not the same for all")
    return RowValues(rows.data[(slice(None), *places)], rows.python)


def number(value: Any, kind: str) -> RowValues | None:
    """`int(row)`, `float(row)`."""
    np = numpy()
    if not isinstance(value, RowValues) or value.rank or (kind == "int" and not value.is_whole):
        return None
    numbers = np.array(value.data.tolist(), dtype=np.int64 if kind == "int" else np.float64)
    return RowValues(numbers, python=True)


def tensor_of(name: str, arguments: list[Any], options: dict[str, Any]) -> RowValues | None:
    """`torch.from_numpy(row)`, `torch.tensor(row)`, `torch.as_tensor(row)`, `FloatTensor(row)`."""
    import torch

    if name in OLDER and not options:
        (value,) = arguments if len(arguments) == 1 else (None,)
        return _by_type(value, *OLDER[name])
    if name not in ("from_numpy", "tensor", "as_tensor") or len(arguments) != 1:
        return None
    value, added = arguments[0], 0
    if type(value) is list and len(value) == 1:  # torch.tensor([number])
        value, added = value[0], 1
        if not isinstance(value, RowValues) or value.rank:
            return None
    dtype = options.pop("dtype", None)
    if options or not isinstance(value, RowValues) or isinstance(value.data, list):
        return None
    if value.is_tensor:
        if name != "as_tensor" or added:
            return None
        return RowValues(value.data if dtype is None else value.data.to(dtype))
    if name == "from_numpy" and (value.python or not value.rank or dtype is not None):
        return None
    if dtype is None and value.python and value.data.dtype.kind == "f":
        dtype = torch.get_default_dtype()
    made = torch.as_tensor(value.data, dtype=dtype)
    return RowValues(made.unsqueeze(1) if added else made)


def _by_type(value: Any, dtype: str, kinds: str) -> RowValues | None:
    """An array's row as a tensor of this type; from numbers it would make something else."""
    import torch

    if not isinstance(value, RowValues) or isinstance(value.data, list) or value.is_tensor:
        return None
    if value.python or not value.rank or value.data.dtype.kind not in kinds:
        return None
    return RowValues(torch.as_tensor(value.data, dtype=getattr(torch, dtype)))


def array_of(name: str, arguments: list[Any], options: dict[str, Any]) -> RowValues | None:
    """`np.float32(row)`, `np.asarray(row, dtype=...)`."""
    np = numpy()
    kind = getattr(np, name, None)
    if name in ("array", "asarray"):
        kind = options.pop("dtype", None)
    elif not (isinstance(kind, type) and issubclass(kind, np.number)):
        return None
    value = arguments[0] if len(arguments) == 1 else None
    if (
        options
        or not isinstance(value, RowValues)
        or value.is_tensor
        or isinstance(value.data, list)
    ):
        return None
    if value.python and kind is None:
        return None
    return RowValues(value.data if kind is None else value.data.astype(kind))


def by_method(
    rows: RowValues, name: str, arguments: list[Any], options: dict[str, Any]
) -> RowValues | None:
    """The result of a method that treats each number, or each dimension, of a row by itself."""
    import torch

    if rows.python or isinstance(rows.data, list) or options:
        return None
    data = rows.data
    if name == "item" and not arguments and not rows.rank:
        return number(rows, "int" if rows.is_whole else "float")
    if rows.is_tensor and not arguments and name in CONVERSIONS:
        return RowValues(getattr(data, name)())
    if rows.is_tensor and name in ("to", "type") and len(arguments) == 1:
        if isinstance(arguments[0], torch.dtype):
            return RowValues(data.to(arguments[0]))
        return None
    if not rows.is_tensor and name == "astype" and len(arguments) == 1:
        return RowValues(data.astype(arguments[0]))
    if not rows.is_tensor and name == "copy" and not arguments:
        return rows
    return _turned(rows, name, arguments)


def _turned(rows: RowValues, name: str, arguments: list[Any]) -> RowValues | None:
    """Each row with its dimensions in another form or order."""
    data, rank = rows.data, rows.rank
    if len(arguments) == 1 and type(arguments[0]) in (tuple, list):
        arguments = list(arguments[0])
    if not all(type(number) is int for number in arguments):
        return None
    within = all(0 <= number < max(rank, 1) for number in arguments)
    shifted = [number + 1 for number in arguments]
    if name == "flatten" and not arguments and rank:
        return RowValues(data.reshape(data.shape[0], -1))
    if name in ("reshape", "view") and arguments and (rows.is_tensor or name == "reshape"):
        return RowValues(data.reshape(data.shape[0], *arguments))
    if rows.is_tensor and name == "unsqueeze" and len(arguments) == 1:
        place = arguments[0]
        return RowValues(data.unsqueeze(place if place < 0 else place + 1))
    if rank and within and len(set(arguments)) == len(arguments) == rank:
        if rows.is_tensor and name == "permute":
            return RowValues(data.permute(0, *shifted))
        if not rows.is_tensor and name == "transpose":
            return RowValues(data.transpose(0, *shifted))
    if rank and within and len(arguments) == 2 and rows.is_tensor and name == "transpose":
        return RowValues(data.transpose(*shifted))
    return None


def collated(sample: Any, given: set[int]) -> Any:
    """Samples put together as the default collate function does.

    given: addresses of the parts that the program was given; each has memory of its own.
    """
    if type(sample) in (tuple, list):
        parts = [collated(item, given) for item in sample]
        text = [isinstance(item, RowValues) and isinstance(item.data, list) for item in sample]
        return [tuple(part) if is_text else part for part, is_text in zip(parts, text, strict=True)]
    if type(sample) is dict:
        return {name: collated(item, given) for name, item in sample.items()}
    if not isinstance(sample, RowValues):
        raise Unreadable("a sample holds something that is no row")
    if sample.python and sample.rank:
        raise Unreadable("a sample holds a list")
    if isinstance(sample.data, list):
        return list(sample.data)
    batch = _in_one_piece(sample)
    if batch.data_ptr() in given:
        batch = batch.clone()
    given.add(batch.data_ptr())
    return batch


def _in_one_piece(rows: RowValues) -> Any:
    """The rows as stacking leaves them in memory."""
    import torch

    np = numpy()
    data = rows.data
    if not rows.is_tensor:
        if data.size and data.strides != np.empty(data.shape, data.dtype).strides:
            data = data.copy(order="C")
        return torch.from_numpy(data)
    if data._is_view() or data.stride() != torch.empty(data.shape, device="meta").stride():
        return data.clone(memory_format=torch.contiguous_format)
    return data
