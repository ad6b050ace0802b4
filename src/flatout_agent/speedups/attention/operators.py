"""Operations of torch by what they do to attention scores, and what their arguments say."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from flatout_agent.speedups.attention.calls import form_queries

NAMES = {
    "product": ("matmul", "__matmul__", "bmm"),
    "einsum": ("einsum",),
    "scale": ("mul", "multiply", "__mul__", "__rmul__", "div", "divide", "true_divide"),
    "scale_": ("mul_", "__imul__", "div_", "__itruediv__", "__idiv__"),
    "add": ("add", "__add__", "__radd__", "sub", "subtract", "__sub__"),
    "add_": ("add_", "__iadd__"),
    "fill": ("masked_fill",),
    "fill_": ("masked_fill_",),
    "where": ("where",),
    "softmax": ("softmax",),
    "cast": ("to", "type", "type_as", "float", "half", "bfloat16"),
    "view": ("view", "reshape"),
    "contiguous": ("contiguous",),
    "dropout": ("dropout",),
}
WRITERS = ("__setitem__", "__set__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__",
           "__ifloordiv__", "__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__",
           "__ilshift__", "__irshift__", "__imatmul__")  # fmt: skip
"""Operators that write to a tensor; other such functions have a name that ends with _."""
METHODS = ("cast", "view", "contiguous")


@functools.cache
def kinds_by_function() -> dict[Any, str]:
    """Functions of torch by what they do to scores."""
    import torch

    kinds: dict[Any, str] = dict.fromkeys(form_queries(), "query")
    for kind, names in NAMES.items():
        owners: list[Any] = [torch.Tensor] if kind != "where" else [torch]
        if kind not in (*METHODS, "where"):
            owners += [torch, torch.nn.functional]
        for name in names:
            for owner in owners:
                func = getattr(owner, name, None)
                if callable(func):
                    kinds[inspect.unwrap(func)] = kind
    return kinds


def kind_of(table: dict[Any, str], func: Any) -> str | None:
    """What a function does, in its own form or wrapped by a boost."""
    kind = table.get(func)
    if kind is None and hasattr(func, "__wrapped__"):
        return table.get(inspect.unwrap(func))
    return kind


def factors(kind: str, args: Any) -> tuple[str | None, tuple[Any, Any]]:
    """(the equation of an einsum, both factors)."""
    if kind == "product":
        return None, tuple(args) if len(args) == 2 else (None, None)
    if not args or not isinstance(args[0], str):
        return None, (None, None)
    factors = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    return args[0], tuple(factors) if len(factors) == 2 else (None, None)


def flat(args: Any) -> list[Any]:
    arguments: list[Any] = []
    for argument in args:
        arguments += argument if type(argument) in (list, tuple) else [argument]
    return arguments


def writes(func: Any, kwargs: Any) -> bool:
    """Whether a function may write to a tensor that it is given."""
    name = getattr(func, "__name__", "_")
    if name.endswith("__"):
        return name in WRITERS
    return name.endswith("_") or "out" in kwargs or bool(kwargs.get("inplace"))
