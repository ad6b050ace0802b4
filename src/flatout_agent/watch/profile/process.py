"""Resources of this process and its loader workers: CPU time, memory, garbage collection time."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterable

import torch

from flatout_agent.job import Job
from flatout_agent.speedups.memory_counters import allocated_bytes
from flatout_agent.watch.tensors import tensors_in

CPU_FIELDS = slice(13, 15)
"""Fields of user and system time in /proc/<pid>/stat, counted from 0 with the command's name as one
field."""


def worker_cpu_s(pids: Iterable[int]) -> dict[int, float]:
    """CPU seconds of each of these processes so far; unreadable ones are left out."""
    if sys.platform != "linux":
        return {}
    used = ((pid, cpu_used(pid)) for pid in pids)
    return {pid: named[1] for pid, named in used if named is not None}


def cpu_used(pid: int) -> tuple[str, float] | None:
    """Name and CPU seconds so far of a process on Linux, or None if they cannot be read."""
    text = small_file(f"/proc/{pid}/stat")
    # The name in brackets may itself contain blanks and brackets.
    head, _, rest = text.rpartition(")")
    fields = ["", "", *rest.split()]
    if sys.platform == "win32" or len(fields) < CPU_FIELDS.stop:
        return None
    seconds = sum(map(int, fields[CPU_FIELDS])) / os.sysconf("SC_CLK_TCK")
    return head.partition("(")[2], seconds


class MemoryInUse:
    """Memory of tensors on the accelerator, or resident memory of this process on CPU, read after
    each step.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._file: int | None = None
        if device == "cpu" and sys.platform == "linux":
            self._file = os.open("/proc/self/statm", os.O_RDONLY)  # opening it costs more

    def bytes(self) -> int | None:
        """Bytes in use now, or None if unknown on this device or system."""
        if self._device == "cuda":
            return allocated_bytes()
        if sys.platform != "linux" or self._file is None:
            return None
        return int(os.pread(self._file, 128, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Stop reading."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def memory_total_bytes(device: str) -> int | None:
    """Total memory in bytes of the accelerator or of this machine."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    if device == "cpu" and sys.platform != "win32":
        return int(os.sysconf("SC_PHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    return None


def parameter_bytes(job: Job) -> int:
    """Bytes of all root models on the training device, including buffers."""
    tensors = (tensor for model in job.models for tensor in (*model.parameters(), *model.buffers()))
    return _held(tensors, job.device)


def optimizer_bytes(job: Job) -> int:
    """Bytes of all optimizers' state on the training device: averages, not weights."""
    return _held(tensors_in([optimizer.state for optimizer in job.optimizers]), job.device)


def _held(tensors: Iterable[torch.Tensor], device: str) -> int:
    """Bytes of these tensors, each once; for a tensor on several devices, this process's part."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if local.device.type == device:
            sizes[id(tensor)] = local.numel() * local.element_size()
    return sum(sizes.values())


def alloc_retries(device: str) -> int:
    """How often the allocator had to free its cache to find room, so far."""
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if device == "cuda" else 0


class Collections:
    """Counts and times Python's garbage collections until `remove`."""

    def __init__(self) -> None:
        self.runs = 0
        self._times: tuple[float, float | None] = 0.0, None
        """Seconds of ended collections, and when the present one began: read and set together."""
        gc.callbacks.append(self._on_collection)

    @property
    def s(self) -> float:
        """Seconds of ended collections."""
        return self._times[0]

    def so_far_s(self) -> float:
        """Seconds including the running collection, if any.

        Python may switch to another thread as its callback begins, before it is counted.
        """
        s, began = self._times
        return s if began is None else s + time.perf_counter() - began

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        s, began = self._times
        if phase == "start":
            self._times = s, time.perf_counter()
        elif began is not None:
            self.runs += 1
            self._times = s + time.perf_counter() - began, None

    def remove(self) -> None:
        """Stop counting."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)


def small_file(path: str) -> str:
    """The text of a kernel file, at most 16 KiB; empty if it cannot be read.

    `open` is avoided, as it is watched for files that the program opens.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 14).decode("utf-8", errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
