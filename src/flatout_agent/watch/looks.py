"""Fingerprints of tensors: the address, the version and, on a CPU, the first values."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

VALUES_BYTES = 256
"""Bytes compared of each tensor on a CPU."""

Look = tuple[Any, ...]


def look(weight: torch.Tensor) -> Look | None:
    """A fingerprint that changes with a tensor's values, read without any operator, or None if it
    cannot be read.
    """
    at = place(weight)
    return (at, values_of(weight)) if at is not None else None


def place(weight: torch.Tensor) -> Look | None:
    """Its address and version, or None if they cannot be read."""
    try:
        weight = _unwrapped(weight)
        if weight.layout is not torch.strided or not weight.numel():
            return None
        return weight.data_ptr(), weight._version
    except (RuntimeError, AttributeError, NotImplementedError):  # no storage, an inference tensor
        return None


def values_of(weight: torch.Tensor) -> bytes | None:
    """The first of its values on a CPU, or None if they cannot be read or only by waiting."""
    try:
        weight = _unwrapped(weight)
        if not on_cpu(weight) or weight.layout is not torch.strided or not weight.numel():
            return None
        storage = weight.untyped_storage()
        room = int(storage.nbytes() - weight.storage_offset() * weight.element_size())
        address = weight.data_ptr()
        return ctypes.string_at(address, max(0, min(VALUES_BYTES, room))) if address else None
    except (RuntimeError, AttributeError, NotImplementedError):
        return None


def _unwrapped(weight: torch.Tensor) -> torch.Tensor:
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(weight):
        weight = functorch.get_unwrapped(weight)
    return weight


def on_cpu(weight: torch.Tensor) -> bool:
    """Whether its values can be read without waiting for a device."""
    return weight.device.type == "cpu"
