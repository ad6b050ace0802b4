"""Storages of tensors: which one holds a tensor's values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

storage_of: Callable[[torch.Tensor], Any] = torch._C.TensorBase.untyped_storage
"""As torch itself has it, whatever stands in front of `Tensor.untyped_storage`."""


def storage_key(tensor: torch.Tensor) -> int | None:
    """The address of its storage; None: it has none, or one of nested tensors of many shapes."""
    try:
        return None if tensor.is_nested else storage_of(tensor)._cdata or None
    except (NotImplementedError, RuntimeError):
        return None


def weak_storage(tensor: torch.Tensor) -> StorageWeakRef:
    """Keeps the address of its storage from being used again, and not its memory."""
    return StorageWeakRef(storage_of(tensor))  # type: ignore[no-untyped-call]  # torch's own


def past_overrides() -> AbstractContextManager[Any]:
    """For what we ask of the program's tensors: its `__torch_function__` sees nothing of that."""
    context: Any = torch._C.DisableTorchFunction()
    return context  # type: ignore[no-any-return]
