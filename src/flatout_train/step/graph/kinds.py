"""Kinds of step: the properties of a batch that a recording fixes, and how two kinds differ."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from flatout_agent.speedups import nests

_NESTS = (dict, list, tuple)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def describe(
    value: Any, device: torch.device, parts: list[Hashable], tensors: list[Tensor]
) -> str | None:
    """Append to `parts` what a recording fixes of this nest; returns why it cannot, or None.

    Its tensors are appended to `tensors` in the order of `nests.tensors`.
    """
    kind = type(value)
    if kind is Tensor or (kind not in _NESTS and isinstance(value, Tensor)):
        problem = _unfit(value, device)
        if problem is None:
            parts.append((value.shape, value.stride(), value.dtype))
            tensors.append(value)
        return problem
    if kind not in _NESTS and isinstance(value, _PLAIN):
        parts.append((kind, value))
        return None
    pairs = nests.members(value)
    if pairs is None:
        return f"the batch holds a {kind.__name__}, which cannot be compared"
    parts.append((kind, len(pairs)))
    for name, member in pairs:
        parts.append(name)
        problem = describe(member, device, parts, tensors)
        if problem is not None:
            return problem
    return None


def _unfit(tensor: Tensor, device: torch.device) -> str | None:
    """Why no static buffer can replace this tensor of a batch, or None if one can."""
    if tensor.device != device and tensor.device.type != device.type:
        return f"the batch has a tensor on {tensor.device}: move it there with flatout.to_device"
    if tensor.requires_grad:
        return "the batch has a tensor that requires a gradient"
    if tensor.layout is not torch.strided:
        return f"the batch has a tensor of layout {tensor.layout}"
    return None


def difference(first: Any, second: Any) -> str:
    """How two kinds of step differ, as text."""
    if first[1] != second[1]:
        changed = sorted({name for pair in _unequal(first[1], second[1]) for name, _ in pair})
        names = ", ".join(repr(name) for name in changed)
        return f"the optimizer's {names} changes from step to step"
    if first[2] != second[2]:
        return "training mode or requires_grad changes from step to step"
    return "the batches differ too often in shape or in values that are not tensors"


def _unequal(first: Any, second: Any) -> list[Any]:
    return [
        (old, new)
        for group, other in zip(first, second, strict=False)
        for old, new in zip(group, other, strict=False)
        if old != new
    ]
