"""Known properties of deferred logits, and the effect of views and casts on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, and its arguments after the tensor."""


def getter(name: str) -> Any:
    """The function that `__torch_function__` gets when this attribute of a tensor is read."""
    return getattr(Tensor, name).__get__


_RESHAPES = {
    Tensor.view,
    Tensor.reshape,
    Tensor.flatten,
    Tensor.unflatten,
    Tensor.unsqueeze,
    Tensor.squeeze,
    torch.reshape,
    torch.flatten,
    torch.unsqueeze,
    torch.squeeze,
}
_COPIES = {Tensor.contiguous, Tensor.clone, torch.clone, Tensor.float, Tensor.double}
_MOVES = {
    Tensor.transpose,
    Tensor.permute,
    Tensor.movedim,
    Tensor.swapaxes,
    torch.transpose,
    torch.permute,
    torch.movedim,
    torch.swapaxes,
    getter("mT"),
}


@dataclass(frozen=True)
class Outline:
    """Properties of logits that are known without computing them."""

    twin: Tensor
    """A meta tensor of the same shape, strides and dtype, without memory."""
    classes: int
    """The dimension of the classes, which the head produces."""
    calls: tuple[Call, ...] = ()
    """The calls that derive them from the head's output."""
    changes: tuple[Callable[[Tensor], Tensor], ...] = ()
    """The equivalent calls on the head's input: what happened to its leading dimensions."""

    def after(
        self, call: Call, twin: Tensor, change: Callable[[Tensor], Tensor] | None, classes: int
    ) -> Outline:
        """The outline after one more call; `change` is its effect on the rows (None for
        no effect).
        """
        changes = self.changes if change is None else (*self.changes, change)
        return replace(self, twin=twin, classes=classes, calls=(*self.calls, call), changes=changes)


def changed(outline: Outline, call: Call, device: torch.device) -> Outline | None:
    """The outline after this call, or None if the call does not keep rows together."""
    func, args, named = call
    twin, classes = outline.twin, outline.classes
    if func == Tensor.to:
        call = _cast(args, named, device) or call
        func = call[0]
    if func in _COPIES:
        result = called(call, twin)
        if torch.promote_types(result.dtype, twin.dtype) != result.dtype:
            return None
        same = result is twin
        return outline if same else outline.after(call, result, None, classes)
    if func in _MOVES:
        probe = torch.empty(tuple(range(1, twin.dim() + 1)), device="meta")
        place = list(called(call, probe).shape).index(classes + 1)
        return outline.after(call, called(call, twin), lambda rows: called(call, rows), place)
    if func in _RESHAPES:
        result = called(call, twin)
        if result.dtype != twin.dtype or not result.dim() or classes != twin.dim() - 1:
            return None
        if result.shape[-1] != twin.shape[-1]:
            return None
        lead = result.shape[:-1]
        return outline.after(
            call, result, lambda rows: rows.reshape(*lead, rows.shape[-1]), result.dim() - 1
        )
    return _sliced(outline, call) if func == Tensor.__getitem__ else None


def _cast(args: tuple[Any, ...], named: dict[str, Any], device: torch.device) -> Call | None:
    """`.to(...)` as `float` or `double`, if it does no more than that; else None."""
    try:
        place, dtype, _, memory_format = torch._C._nn._parse_to(*args, **named)
    except (TypeError, RuntimeError):  # it also copies
        return None
    if memory_format is not None or (place is not None and torch.device(place) != device):
        return None
    known = {torch.float32: Tensor.float, torch.float64: Tensor.double}
    return (known[dtype], (), {}) if dtype in known else None


def _sliced(outline: Outline, call: Call) -> Outline | None:
    """The outline after slices, integers, None and `...` that keep all classes; else None."""
    key = call[1][0] if isinstance(call[1][0], tuple) else (call[1][0],)
    plain = (int, type(None), type(...))
    if not all(type(index) in plain or _is_slice(index) for index in key):
        return None
    dims = outline.twin.dim()
    taken = sum(index is not None and index is not ... for index in key)
    if ... not in key:
        key = (*key, ...)
    if sum(index is ... for index in key) != 1 or taken > dims:
        return None
    spot = key.index(...)
    full = (*key[:spot], *[slice(None)] * (dims - taken), *key[spot + 1 :])
    dim = place = 0
    for index in full:
        if index is None:
            place += 1
            continue
        if dim == outline.classes:
            if index != slice(None):
                return None
            result = outline.twin[full]
            return outline.after(call, result, lambda rows: rows[full], place)
        dim, place = dim + 1, place + (not isinstance(index, int))
    return None


def _is_slice(item: Any) -> bool:
    if not isinstance(item, slice):
        return False
    return all(type(part) in (int, type(None)) for part in (item.start, item.stop, item.step))


def called(call: Call, tensor: Tensor) -> Any:
    """The result of the call on this tensor."""
    func, args, named = call
    return func(tensor, *args, **{name: value for name, value in named.items() if name != "input"})
