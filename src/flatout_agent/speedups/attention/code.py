"""Finds the modules whose forward pass may compute attention, by the names in their code."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DEEPEST = 3
"""Functions that a forward pass calls are followed to this depth."""
PRODUCTS = {"matmul", "bmm", "einsum", "__matmul__"}
"""Names that multiply; `@` is found by its instruction."""


def candidates(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of the model whose own code takes a softmax and multiplies matrices."""
    import torch

    names_both: dict[type, bool] = {}
    modules = []
    for module in model.modules():
        kind = type(module)
        if isinstance(module, torch.jit.ScriptModule) or kind.__module__.startswith("torch."):
            continue
        if kind not in names_both:
            names_both[kind] = _names_both(kind)
        softmax = names_both[kind] or (
            any(isinstance(child, torch.nn.Softmax) for child in module.children())
            and _multiplies(kind)
        )
        if softmax:
            modules.append(module)
    return modules


def _names_both(kind: type) -> bool:
    codes = list(_codes(kind))
    return any(_softmax(code) for code in codes) and any(_product(code) for code in codes)


def _multiplies(kind: type) -> bool:
    return any(_product(code) for code in _codes(kind))


def _softmax(code: CodeType) -> bool:
    return any("softmax" in name.lower() and "log" not in name for name in code.co_names)


def _product(code: CodeType) -> bool:
    if not PRODUCTS.isdisjoint(code.co_names):
        return True
    return any(
        item.argrepr == "@" or item.opname == "BINARY_MATRIX_MULTIPLY"
        for item in dis.get_instructions(code)
    )


def _codes(kind: type) -> Iterator[CodeType]:
    """The code of `forward`, and of the functions and methods of the program's that it names."""
    visited: set[CodeType] = set()
    waiting = [(getattr(kind, "forward", None), 0)]
    while waiting:
        func, depth = waiting.pop()
        func = inspect.unwrap(func) if callable(func) else None
        if not isinstance(func, FunctionType) or func.__code__ in visited:
            continue
        if (func.__module__ or "").startswith("torch."):
            continue
        for code in _nested(func.__code__):
            visited.add(code)
            yield code
            if depth < DEEPEST:
                names = code.co_names
                waiting += [(func.__globals__.get(name), depth + 1) for name in names]
                waiting += [(inspect.getattr_static(kind, name, None), depth + 1) for name in names]


def _nested(code: CodeType) -> Iterator[CodeType]:
    """The code itself, and that of functions inside of it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from _nested(item)
