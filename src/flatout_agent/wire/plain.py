"""A program's numbers and names in a form for JSON, including NumPy's and torch's scalars."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """`value` as only dicts, lists, numbers, texts and None. Raises TypeError if that is
    impossible.

    Dataclasses become dicts; tuples (torch.Size too), lists and sets become lists; enums their
    values; objects with one number, such as numpy.int64(16), numpy.bool_ or torch.tensor(0.1),
    become that number; subclasses of int, float and str become their base type.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if dataclasses.is_dataclass(kind):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if hasattr(value, "item"):
        return plain(value.item())
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} is no number and no text: {value!r}")
