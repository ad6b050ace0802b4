"""Nests: leaves inside dicts, sequences, dataclasses and distributions, as loaders, models and
losses pass them.

This is the one walker of such nests. A rule says what counts as a leaf: `is_tensor` for the inputs
and outputs of models, another if objects are to stay whole (`PackedSequence`, objects with their
own `.to`). torch's own pytree cannot replace it. pytree goes by exact types: dataclasses and
subclasses of `dict` and `MutableMapping` (Hugging Face's `BatchEncoding`) are leaves to it until
someone registers them, which would change pytree for the whole process, including the user's code.
It rebuilds every nest, while here the same object comes back if nothing has changed. It is also
private to torch (`torch.utils._pytree`), and this module never imports torch.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LeafRule = Callable[[Any], bool]
"""Whether a value is a leaf: nothing looks into it, and the action is applied to it."""
UNLIMITED = 1 << 30


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    return hasattr(value, "dtype") and hasattr(value, "grad_fn")


def is_dataclass(value: Any) -> bool:
    """An instance of a dataclass, not the class."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_distribution(value: Any) -> bool:
    """An instance of `torch.distributions`, or a transform in one, which holds tensors."""
    torch = sys.modules.get("torch.distributions")
    if torch is None or not isinstance(value, (torch.Distribution, torch.Transform)):
        return False
    return not hasattr(value, "_parameters")  # a flow that is a module


def members(value: Any) -> Collection[tuple[Any, Any]] | None:
    """(key, member) of a nest, in order, or None if the value is no nest.

    Keys are those of a mapping, positions in a list or tuple, names in a dataclass or distribution.
    """
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return value.items()
    if is_dataclass(value):
        return _fields(value)
    return list(vars(value).items()) if is_distribution(value) else None


def change(value: Any, action: Callable[[Any], Any], is_leaf: LeafRule = is_tensor) -> Any:
    """`value` with `action` applied to every leaf in it; nests keep their types.

    If `action` returns each leaf as it was, the same object comes back. The nests themselves are
    copied, never written to, since the model may hold them. A read-only mapping is replaced by a
    dict.
    """
    if is_leaf(value):
        return action(value)
    if isinstance(value, (list, tuple)):
        items = [change(item, action, is_leaf) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    pairs = members(value)
    if pairs is None:
        return value
    changes = {}
    for key, member in pairs:
        changed = change(member, action, is_leaf)
        if changed is not member:
            changes[key] = changed
    return _with(value, changes) if changes else value


def _with(value: Any, changes: dict[Any, Any]) -> Any:
    """A copy of a mapping, dataclass or distribution with these members."""
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return {**value, **changes}
    twin = copy.copy(value)
    for key, member in changes.items():
        if isinstance(twin, MutableMapping):
            twin[key] = member  # not update(), which Hugging Face's ModelOutput refuses
        else:
            object.__setattr__(twin, key, member)  # frozen dataclasses too
    return twin


def leaves(value: Any, is_leaf: LeafRule = is_tensor, deepest: int = UNLIMITED) -> Iterator[Any]:
    """Every leaf of a nest, in the order of `members`; nests within `deepest` others at most."""
    if is_leaf(value):
        yield value
    elif deepest >= 0:
        for member in _values(value):
            yield from leaves(member, is_leaf, deepest - 1)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a nest."""
    return leaves(value)


def paths(
    value: Any, path: str = "batch", is_leaf: LeafRule = is_tensor
) -> Iterator[tuple[str, Any]]:
    """Every leaf with its path: `batch[0]`, `batch['labels']`, `batch.mask`."""
    if is_leaf(value):
        yield path, value
        return
    for key, member in members(value) or ():
        yield from paths(member, path + _step(value, key), is_leaf)


def _step(value: Any, key: Any) -> str:
    """The expression by which a program accesses this member."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f".{value._fields[key]}"
    if isinstance(value, (list, tuple, Mapping)):
        return f"[{key!r}]"
    return f".{key}"


def _values(value: Any) -> Iterable[Any]:
    """The members without keys, since `leaves` is called in every step."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Mapping):
        return value.values()
    if is_dataclass(value):
        return [member for _, member in _fields(value)]
    return vars(value).values() if is_distribution(value) else ()


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
