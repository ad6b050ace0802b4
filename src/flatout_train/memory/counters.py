"""The memory counters of each device type, from torch or the system; None if unknown."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent import limits
from flatout_agent.speedups import memory_counters
from flatout_train.errors import UsageError


@dataclass(frozen=True)
class Counters:
    """Memory of one device in bytes; None if unknown."""

    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None
    free: int | None = None
    total: int | None = None
    split: int | None = None
    """Free bytes within reserved blocks that are partly in use: they cannot be returned."""


def read(device: torch.device) -> Counters:
    """The current counters of this device; does not synchronise."""
    if device.type in ("cuda", "xpu"):
        return _allocator(getattr(torch, device.type), device)
    if device.type == "mps":
        return Counters(
            allocated=torch.mps.current_allocated_memory(),
            reserved=torch.mps.driver_allocated_memory(),
            total=torch.mps.recommended_max_memory(),
        )
    if device.type == "cpu":
        return _process()
    raise UsageError(
        f"flatout.memory cannot read the memory of {device.type}: pass a cuda, xpu, mps or cpu "
        "device"
    )


def live(device: torch.device) -> int | None:
    """Bytes in use now; cheap enough to call in each step."""
    if device.type == "cuda":
        return memory_counters.allocated_bytes(device)
    if device.type == "xpu":
        return int(torch.xpu.memory_allocated(device))
    if device.type == "cpu" and _malloc_counts():
        return _in_malloc()
    return read(device).allocated


def name(device: torch.device) -> str:
    """A human-readable name of the device."""
    if device.type in ("cuda", "xpu"):
        return f"{device} ({getattr(torch, device.type).get_device_name(device)})"
    return "this process on the CPU" if device.type == "cpu" else str(device)


def give_back(device: torch.device) -> None:
    """Collect garbage, then return the allocator's unused memory to the device or system."""
    gc.collect()
    if device.type in ("cuda", "xpu", "mps"):
        getattr(torch, device.type).empty_cache()
    elif sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
        if trim is not None:
            trim(0)


def bound(device: torch.device, fraction: float) -> None:
    """Limit the allocator to this share of the device; UsageError if torch cannot."""
    if device.type == "cpu":
        raise UsageError(
            "PyTorch cannot limit its memory on the CPU: start the program under a limit, "
            "such as `systemd-run --user --scope -p MemoryMax=8G python train.py`"
        )
    if device.type == "mps":
        torch.mps.set_per_process_memory_fraction(fraction)
        return
    module = getattr(torch, device.type)
    if not hasattr(module, "set_per_process_memory_fraction"):
        raise UsageError(f"torch {torch.__version__} cannot limit the memory of {device.type}")
    module.set_per_process_memory_fraction(fraction, device)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@functools.cache
def _mallinfo2() -> Callable[[], Any] | None:
    """The C library's heap statistics (glibc 2.33 or newer), or None if it has no such call."""
    if sys.platform != "linux":
        return None
    call = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if call is None:
        return None
    call.restype = _Mallinfo2
    return lambda: call()


def _in_malloc() -> int:
    """Bytes allocated from the C library's heap, exactly."""
    call = _mallinfo2()
    info = call() if call is not None else _Mallinfo2()
    return int(info.uordblks + info.hblkhd)


@functools.cache
def _malloc_counts() -> bool:
    """Whether tensors are in that heap: not with a replaced allocator (LD_PRELOAD)."""
    if _mallinfo2() is None:
        return False
    before = _in_malloc()
    probe = torch.empty(2**22, dtype=torch.uint8)
    return _in_malloc() - before >= probe.nbytes


def _allocator(module: Any, device: torch.device) -> Counters:
    """CUDA, ROCm and XPU share the caching allocator's statistics."""
    stats = module.memory_stats(device)
    free = total = None
    if hasattr(module, "mem_get_info"):
        free, total = module.mem_get_info(device)
    else:
        total = module.get_device_properties(device).total_memory
    return Counters(
        allocated=stats.get("allocated_bytes.all.current"),
        reserved=stats.get("reserved_bytes.all.current"),
        peak=stats.get("allocated_bytes.all.peak"),
        free=free,
        total=total,
        split=stats.get("inactive_split_bytes.all.current"),
    )


def _process() -> Counters:
    """Resident memory of this process, its peak, and the free memory of the machine
    or container.
    """
    sizes = (limits.meminfo().get("MemTotal"), limits.memory_limit())
    total = min((size for size in sizes if size is not None), default=None)
    free = limits.available_memory()
    return Counters(
        allocated=memory_counters.resident_bytes(),
        peak=memory_counters.peak_resident_bytes(),
        free=free,
        total=total,
    )
