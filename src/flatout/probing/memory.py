"""Main memory: the machine's total and free memory, and the limits of the process's cgroups."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import psutil

from flatout.nouns.machine import Memory
from flatout_agent import limits

SHARED = Path("/dev/shm")


def usable_bytes() -> int | None:
    """The smaller of the machine's memory and the tightest limit of the process's cgroups."""
    try:
        total = int(psutil.virtual_memory().total)
    except (OSError, RuntimeError):
        return None
    limit = limits.memory_limit()
    return total if limit is None else min(total, limit)


if sys.platform == "linux":

    def memory() -> Memory:
        """Main memory now."""
        sizes = limits.meminfo()
        total, free = sizes.get("SwapTotal"), sizes.get("SwapFree")
        used = total - free if total is not None and free is not None and free <= total else None
        shared = shared_free = None
        with contextlib.suppress(OSError, ValueError):
            status = os.statvfs(SHARED)
            if status.f_blocks:  # 0 means a tmpfs without a limit
                shared = status.f_blocks * status.f_frsize
                shared_free = status.f_bavail * status.f_frsize
        return Memory(
            total_bytes=sizes.get("MemTotal") or None,
            available_bytes=sizes.get("MemAvailable"),
            limit_bytes=limits.memory_limit(),
            swap_total_bytes=total,
            swap_used_bytes=used,
            shm_bytes=shared,
            shm_free_bytes=shared_free,
        )

else:

    def memory() -> Memory:
        """Main memory now."""
        try:
            main, swap = psutil.virtual_memory(), psutil.swap_memory()
        except (OSError, RuntimeError):
            return Memory()
        return Memory(
            total_bytes=int(main.total) or None,
            available_bytes=int(main.available),
            swap_total_bytes=int(swap.total),
            swap_used_bytes=int(swap.used),
        )
