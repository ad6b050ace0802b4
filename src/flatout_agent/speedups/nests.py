"""Nests: what a model takes and gives, tensors inside dicts, sequences and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any


def is_tensor(value: Any) -> bool:
    """A torch tensor, told without importing torch."""
    return hasattr(value, "dtype") and hasattr(value, "grad_fn")


def change(value: Any, one: Callable[[Any], Any]) -> Any:
    """`value` with `one` applied to every tensor in it; nests keep their types.

    Where `one` returns each tensor as it was, the same object comes back. The nests themselves are
    copied, never written to: the model may hold on to them.
    """
    if is_tensor(value):
        return one(value)
    if isinstance(value, MutableMapping):
        changed = _changed(value.items(), one)
        if not changed:
            return value
        mapping = copy.copy(value)
        for key, item in changed.items():
            mapping[key] = item
        return mapping
    if isinstance(value, (list, tuple)):
        items = [change(item, one) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = _changed(_fields(value), one)
        if not changed:
            return value
        twin = copy.copy(value)
        for name, item in changed.items():
            object.__setattr__(twin, name, item)  # frozen dataclasses too
        return twin
    return value


def tensors(value: Any) -> Iterator[Any]:
    """Every tensor in a nest."""
    if is_tensor(value):
        yield value
    elif isinstance(value, MutableMapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for _, item in _fields(value):
            yield from tensors(item)


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]


def _changed(items: Any, one: Callable[[Any], Any]) -> dict[Any, Any]:
    pairs = {key: (item, change(item, one)) for key, item in items}
    return {key: new for key, (old, new) in pairs.items() if new is not old}
