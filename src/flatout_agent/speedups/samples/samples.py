"""Samples of a dataset: independent copies, bitwise comparison, and changes of the dataset.

Only fully known types are copied; all others raise `Uncopyable`.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Iterator
from typing import Any

from flatout_agent.speedups.workers import worker_safety
from flatout_agent.speedups.workers.reachable import globals_named, reachable

UNCHANGING = (type(None), bool, int, float, complex, str, bytes)
ARRAY_KINDS = "biufcSUmM"
"""NumPy's kinds of data without references to Python objects."""
OVERHEAD = 400
"""The most bytes of a tensor, array or image besides its data."""


class Uncopyable(Exception):  # noqa: N818 - a decision with its reason, not an error
    """A sample holds something that cannot be copied faithfully."""


def is_unchanging(value: Any) -> bool:
    """Whether nobody can change it in place: a number, a string, a NumPy scalar."""
    kind = type(value)
    if kind in UNCHANGING:
        return True
    if kind.__module__ != "numpy" or not hasattr(kind, "dtype") or hasattr(kind, "__setitem__"):
        return False
    return str(value.dtype.kind) in ARRAY_KINDS


def is_array(value: Any) -> bool:
    """Whether it is NumPy's own ndarray, not a subclass."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def is_image(value: Any) -> bool:
    """Whether it is PIL's own Image: those of the file formats lose their type in a copy."""
    return type(value).__module__ == "PIL.Image" and type(value).__name__ == "Image"


def copied(value: Any, stacked: bool) -> Any:
    """An independent copy. `stacked`: only the result of stacking must be the same.

    Raises Uncopyable.
    """
    import torch

    if is_unchanging(value):
        return value
    if type(value) is torch.Tensor:
        return _tensor(value, stacked)
    if is_array(value):
        return _array(value, stacked)
    if is_image(value):
        return value.copy()
    if type(value) is dict:
        if all(map(is_unchanging, value)):
            return {key: copied(item, stacked) for key, item in value.items()}
        raise Uncopyable("a sample is a dict whose keys are not plain")
    if isinstance(value, (list, tuple)):
        items = [copied(item, stacked) for item in value]
        if type(value) in (list, tuple):
            return type(value)(items)
        if hasattr(value, "_make") and not getattr(value, "__dict__", None):
            return value._make(items)
    kind = type(value)
    raise Uncopyable(f"a sample holds {kind.__module__}.{kind.__qualname__}")


def _tensor(value: Any, stacked: bool) -> Any:
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise Uncopyable("a sample holds a sparse, quantized or nested tensor")
    if value.device.type != "cpu":
        raise Uncopyable(f"a sample holds a tensor on {value.device}")
    if value.requires_grad or value.is_conj() or value.is_neg() or vars(value):
        raise Uncopyable("a sample holds a tensor with gradients or attributes of its own")
    copy = value.clone()
    if copy.stride() != value.stride() and not (stacked and _stack_alike(copy, value)):
        raise Uncopyable("a sample is a part of a larger tensor")
    return copy


def _array(value: Any, stacked: bool) -> Any:
    import torch

    if value.dtype.kind not in ARRAY_KINDS:
        raise Uncopyable(f"a sample holds an array of {value.dtype}")
    copy = value.copy(order="K")
    if copy.strides != value.strides:
        tensors = [torch.as_tensor(item) for item in (copy, value)] if stacked else None
        if tensors is None or not _stack_alike(*tensors):
            raise Uncopyable("a sample is a part of a larger array")
    copy.flags.writeable = value.flags.writeable
    return copy


def _stack_alike(first: Any, second: Any) -> bool:
    import torch

    return bool(torch.stack((first, first)).stride() == torch.stack((second, second)).stride())


def size(value: Any) -> int:
    """Bytes of a copied sample including Python's own objects, estimated rather high."""
    if type(value) is dict:
        return sys.getsizeof(value) + sum(size(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(size, value))
    if is_image(value):
        bands = {"1": 1, "L": 1, "P": 1}.get(value.mode, 4)  # RGB, too, takes four bytes
        return OVERHEAD + int(value.width * value.height * bands)
    return OVERHEAD + value.nbytes if hasattr(value, "nbytes") else sys.getsizeof(value)


def same(first: Any, second: Any) -> bool:
    """Whether both have the same types, forms and bits."""
    import torch

    if type(first) is not type(second):
        return False
    if type(first) is torch.Tensor:
        forms = [(t.dtype, t.device, t.shape, t.stride(), t.requires_grad) for t in (first, second)]
        if forms[0] != forms[1]:
            return False
        return bool(torch.equal(*(item.reshape(-1).view(torch.uint8) for item in (first, second))))
    if is_array(first):
        arrays = [(a.dtype, a.shape, a.strides, a.flags.writeable) for a in (first, second)]
        return bool(arrays[0] == arrays[1] and first.tobytes() == second.tobytes())
    if type(first) is dict:
        return list(first) == list(second) and all(same(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(same(a, b) for a, b in pairs)
    if type(first) is float:
        return bool(first.hex() == second.hex())
    if type(first) is complex:
        return (first.real.hex(), first.imag.hex()) == (second.real.hex(), second.imag.hex())
    if hasattr(first, "tobytes") and not is_image(first):  # a NumPy scalar
        return bool(first.dtype == second.dtype and first.tobytes() == second.tobytes())
    return bool(first == second)


def places(value: Any) -> Iterator[int]:
    """Addresses of the parts of a sample that could be changed in place."""
    import torch

    if type(value) is torch.Tensor:
        yield value.untyped_storage().data_ptr()
    elif is_array(value):
        yield value.__array_interface__["data"][0]
    elif is_image(value):
        yield id(value)
    elif isinstance(value, (dict, list, tuple)):
        if not isinstance(value, tuple):
            yield id(value)
        for item in value.values() if isinstance(value, dict) else value:
            yield from places(item)


def levels(dataset: Any) -> Iterator[Any]:
    """The dataset, and those inside PyTorch's own that select and combine."""
    yield dataset
    if combines(dataset):
        inner = getattr(dataset, "datasets", None) or [dataset.dataset]
        for part in inner.values() if isinstance(inner, dict) else inner:
            yield from levels(part)


def combines(dataset: Any) -> bool:
    """Whether it is one of PyTorch's own that select from others or combine them."""
    import torch

    data = torch.utils.data
    return type(dataset) in (data.Subset, data.ConcatDataset, data.StackDataset)


def collates_by_default(function: Any) -> bool:
    """Whether it is PyTorch's own collate function, and the program has added nothing to it."""
    import torch

    collate = torch.utils.data._utils.collate
    functions = collate.default_collate_fn_map.values()
    return function is collate.default_collate and all(
        function.__module__ == collate.__name__ for function in functions
    )


class Glance:
    """The attributes of a dataset's objects, to detect cheaply whether one was set again."""

    def __init__(self, dataset: Any) -> None:
        self._held: list[tuple[dict[str, Any], list[Any]]] = []
        for _, value in reachable(dataset, ""):
            held = getattr(value, "__dict__", None)
            if isinstance(held, dict) and not isinstance(value, types.ModuleType):
                self._held.append((held, list(held.values())))

    def untouched(self) -> bool:
        """Whether all of them are still the same objects."""
        return all(
            len(held) == len(values) and all(map(operator.is_, held.values(), values))
            for held, values in self._held
        )


def names_generator(source: Any) -> bool:
    """Whether the loading code names a global that is or holds a random generator."""
    for _, value in globals_named(source):
        if value is None or isinstance(value, (type, types.ModuleType, types.FunctionType)):
            continue
        holder = types.SimpleNamespace(dataset=value, collate_fn=None)
        if worker_safety.random_generators(holder):
            return True
    return False
