"""Memory in use, as counted by torch's allocator and the system.

The watch on a program, live tuning and the library's memory reports share this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flatout_agent import limits

if TYPE_CHECKING:
    import torch


def allocated_bytes(device: torch.device | None = None) -> int:
    """Bytes of tensors on a CUDA device (None for the current one); cheap enough for each step."""
    import torch

    # Not memory_allocated: that flattens and sorts all counters of the allocator.
    counters = torch.cuda.memory_stats_as_nested_dict(device)
    return int(counters["allocated_bytes"]["all"]["current"]) if counters else 0


def unused_bytes(device: torch.device) -> int:
    """Bytes that were free on a CUDA device at the program's peak so far.

    Only half of what the allocator then held in reserve counts: the rest may be in small pieces.
    """
    import torch

    cuda = torch.cuda
    free: int = cuda.mem_get_info(device)[0]
    reserve = int(cuda.memory_reserved(device)) - program_peak_bytes(device)
    return free + min(reserve, reserve // 2)


_peaks: dict[torch.device | None, int] = {}
"""The program's peak on each device until flatout's own work last exceeded it."""


def program_peak_bytes(device: torch.device | None) -> int:
    """Peak of what was allocated on a CUDA device (None for the current one), without the work done
    in `beside_the_program`.
    """
    import torch

    return max(_peaks.get(device, 0), int(torch.cuda.max_memory_allocated(device)))


@contextmanager
def beside_the_program(devices: Iterable[torch.device]) -> Iterator[None]:
    """What is allocated here is flatout's own: it does not count as the program's peak.

    If it is more than that, torch's own count of the peak begins anew.
    """
    import torch

    peaks = {device: program_peak_bytes(device) for device in devices if device.type == "cuda"}
    try:
        yield
    finally:
        for device, peak in peaks.items():
            if torch.cuda.max_memory_allocated(device) > peak:
                _peaks[device] = peak
                torch.cuda.reset_peak_memory_stats(device)


def resident_bytes() -> int | None:
    """Bytes of main memory that this process uses, or None if unknown on this system."""
    if sys.platform == "win32":
        return None
    try:
        text = (limits.ROOT / "proc/self/statm").read_text(encoding="ascii")
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def peak_resident_bytes() -> int | None:
    """Peak main memory of this process in bytes, or None if unknown (Windows)."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
