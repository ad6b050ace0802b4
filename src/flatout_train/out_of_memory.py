"""Recognise out-of-memory errors, and free memory still held by the failed attempt."""

from __future__ import annotations

import gc
import re
import traceback
from typing import Any

import torch

_MESSAGES = re.compile(
    r"\b(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory"
    r"|\b(?:CUDA|HIP)(?: driver| runtime)? error: out of memory"
    r"|Triton Error \[\w+\]: out of memory"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|\b(?:CU|HIP)(?:BLAS|BLASLT|SOLVER|SPARSE|FFT)_(?:STATUS_)?ALLOC_FAILED"
    r"|\bCUDNN_STATUS_(?:\w+_)?ALLOC(?:ATION)?_FAILED"
    r"|\bmiopenStatusAllocFailed\b|\brocblas_status_memory_error\b"
    r"|\bUR_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY\b"
)
"""Messages of torch and the libraries below it that mean nothing but a failed allocation."""
_AMBIGUOUS_MESSAGES = re.compile(
    r"\b(?:CUDNN|CUBLAS|CUSOLVER|CUSPARSE)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)\b"
    r"|\bCUDNN_STATUS_NOT_SUPPORTED\b"
)
"""Messages that also have other causes: they mean out of memory only if the device is full."""
_FULL = 0.03
"""A device is full when less than this share of its memory is free."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that a device or the host had no memory left to allocate.

    Call it while the failed attempt's tensors are still alive (in the `except` block): messages
    that also have other causes, such as CUDNN_STATUS_NOT_SUPPORTED, count only if a CUDA device on
    which torch holds memory is full. Errors of collectives never count: after one, the processes
    are out of sync.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    distributed: Any = torch.distributed
    if distributed.is_available() and isinstance(error, distributed.DistError):
        return False
    text = str(error)
    return bool(_MESSAGES.search(text)) or (
        bool(_AMBIGUOUS_MESSAGES.search(text)) and _device_is_full()
    )


def _device_is_full() -> bool:
    cuda: Any = torch.cuda
    if not (cuda.is_available() and cuda.is_initialized()):
        return False
    try:
        memory = [cuda.mem_get_info(number) for number in _devices_in_use()]
    except RuntimeError:  # the device does not answer any more
        return False
    return any(free < _FULL * total for free, total in memory)


def _devices_in_use() -> list[int]:
    """Devices on which torch holds memory: querying any other device would allocate there."""
    cuda: Any = torch.cuda
    try:
        return [number for number in range(cuda.device_count()) if cuda.memory_reserved(number)]
    except RuntimeError:  # a custom allocator of the user's has no counters
        return [cuda.current_device()]


def let_go(error: BaseException, device: torch.device) -> None:
    """Drop the objects held by the error's frames, and return the allocator's unused memory to the
    device.

    Call it after the `except` block. The error keeps its message, but loses its traceback, cause
    and context.
    """
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = error.__cause__ = error.__context__ = None
    gc.collect()
    empty_cache(device)


def empty_cache(device: torch.device) -> None:
    """Return the memory that torch's allocator caches to the device, if any."""
    empty = getattr(torch.get_device_module(device), "empty_cache", None)
    if empty is not None:
        empty()
