"""Storages of tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

storage_of: Callable[[torch.Tensor], Any] = torch._C.TensorBase.untyped_storage
"""torch's own method, even if `Tensor.untyped_storage` is wrapped."""


def storage_key(tensor: torch.Tensor) -> int | None:
    """The address of its storage, or None if it has none or is a nested tensor of many shapes."""
    try:
        return None if tensor.is_nested else storage_of(tensor)._cdata or None
    except (NotImplementedError, RuntimeError):
        return None


def weak_storage(tensor: torch.Tensor) -> StorageWeakRef:
    """A reference that keeps the address of its storage from being reused, without keeping its
    memory.
    """
    return StorageWeakRef(storage_of(tensor))  # type: ignore[no-untyped-call]  # torch's own


def past_overrides() -> AbstractContextManager[Any]:
    """Bypass the program's `__torch_function__` while we inspect its tensors."""
    context: Any = torch._C.DisableTorchFunction()
    return context  # type: ignore[no-any-return]
