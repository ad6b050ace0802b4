"""Objects reachable from an object, to look into a dataset without calling any of it.

Only attributes, container items, bound methods, partials and closures are followed; nothing is
called, so looking changes nothing. Tensors, arrays, modules, types and loggers are not entered.
"""

from __future__ import annotations

import functools
import io
import logging
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

LIMIT = 4000
DEPTH = 8
SAMPLE = 64
"""Items inspected in one container, tensors of one object whose values are looked at, and values of
one array: the first ones represent a list of a million file names."""

HASHED_BYTES = 1 << 16

MOST_FUNCTIONS = 500
"""At most this many functions are inspected."""

Step = tuple[str, Any]


def reachable(root: Any, name: str) -> Iterator[Step]:
    """(path, object) for everything reachable from `root`, nearest first, including `root`."""
    queue: deque[tuple[str, Any, int]] = deque([(name, root, 0)])
    visited: set[int] = set()
    while queue and len(visited) < LIMIT:
        path, value, depth = queue.popleft()
        if id(value) in visited:
            continue
        visited.add(id(value))
        yield path, value
        if depth < DEPTH:
            queue.extend((inner, item, depth + 1) for inner, item in _parts(path, value))


def globals_named(*roots: Any) -> Iterator[Step]:
    """(name, value or None) of each global that the code of these objects names.

    Their code includes that of everything reachable from them, of its classes, and of the functions
    among these globals.
    """
    waiting: list[Any] = []
    for root in roots:
        for _, value in reachable(root, ""):
            waiting.append(value)
            if not isinstance(value, type):
                waiting += [
                    member for kind in type(value).__mro__ for member in vars(kind).values()
                ]
    visited: set[int] = set()
    while waiting and len(visited) < MOST_FUNCTIONS:
        function = waiting.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, types.FunctionType) or id(function) in visited:
            continue
        visited.add(id(function))
        for name in _names(function.__code__):
            value = function.__globals__.get(name)
            waiting.append(value)
            yield name, value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def state(root: Any) -> list[tuple[str, Any]]:
    """A summary of `root`; if it differs later, something that `root` holds has changed."""
    summary, tensors = [], 0
    for path, value in reachable(root, ""):
        signature = _signature(value)
        if hasattr(type(value), "untyped_storage"):
            tensors += 1
            if tensors <= SAMPLE:  # each takes some 20 us, and a summary is made for each batch
                signature = (*signature, _some_of(value))
        summary.append((path, signature))
    return summary


def _parts(path: str, value: Any) -> Iterator[Step]:
    if isinstance(value, dict):
        for key in list(value)[:SAMPLE]:
            yield f"{path}[{key!r:.40}]", value[key]
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in zip(range(SAMPLE), list(value), strict=False):
            yield f"{path}[{index}]", item
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
        yield f"{path}.__func__", value.__func__
    elif isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((f"{path}.{key}", _held(cell)) for key, cell in cells)
    elif not _is_end(value):
        for key, item in list(_attributes(value).items())[:SAMPLE]:
            yield f"{path}.{key}", item


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return None


def _attributes(value: Any) -> dict[str, Any]:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return dict(attributes) if isinstance(attributes, dict) else {}


def _is_end(value: Any) -> bool:
    if isinstance(value, type | types.ModuleType | logging.Logger | logging.Handler | io.IOBase):
        return True
    return hasattr(type(value), "untyped_storage") or hasattr(type(value), "__array_interface__")


def _signature(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes | bool | int | float | complex):
        return value
    if hasattr(type(value), "untyped_storage"):
        return (id(value), value._version, tuple(value.shape))
    if isinstance(value, dict | list | tuple | set | frozenset):
        return (type(value).__name__, len(value))
    return (id(value), _content(value))


def _some_of(tensor: Any) -> bytes | None:
    """Some of its values: a tensor that takes the place of a freed one may have its identity and
    version, and NumPy writes into a tensor's memory without a new version.
    """
    import torch

    if tensor.device.type != "cpu" or not tensor.is_contiguous() or not tensor.numel():
        return None
    try:
        some = tensor.detach().view(-1)[:: max(1, tensor.numel() // SAMPLE)]
        return bytes(some.contiguous().view(torch.uint8).numpy())
    except (RuntimeError, TypeError):  # a tensor without plain memory
        return None


def _content(value: Any) -> int | None:
    """A hash of an array's bytes, or of some of a large one's: arrays do not count changes."""
    try:
        view = memoryview(value)
        if view.nbytes <= HASHED_BYTES:
            return hash(view.tobytes())
    except (TypeError, ValueError, NotImplementedError):  # no array, or one of dates
        return None
    some = getattr(value, "flat", None)  # of a NumPy array
    return hash(some[:: value.size // SAMPLE].tobytes()) if some is not None else None
