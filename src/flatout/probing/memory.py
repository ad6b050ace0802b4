"""Main memory: what the machine has, what is free, and the limits of this process's groups."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psutil

from flatout.nouns.machine import Memory
from flatout.probing import reading

MEMBERSHIP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
SHARED = Path("/dev/shm")
UNLIMITED_BYTES = 2**62
"""Version 1 groups write "no limit" as the largest number of whole pages below 2**63."""


def usable_bytes() -> int | None:
    """The smaller of the machine's memory and the tightest limit of this process's groups."""
    try:
        total = int(psutil.virtual_memory().total)
    except (OSError, RuntimeError):
        return None
    limit = cgroup_limit(MEMBERSHIP, CGROUPS) if sys.platform == "linux" else None
    return total if limit is None else min(total, limit)


if sys.platform == "linux":

    def memory() -> Memory:
        """Main memory now."""
        said = meminfo(reading.text(MEMINFO) or "")
        total, free = said.get("SwapTotal"), said.get("SwapFree")
        used = total - free if total is not None and free is not None and free <= total else None
        shared, shared_free = _shared()
        return Memory(
            total_bytes=said.get("MemTotal") or None,
            available_bytes=said.get("MemAvailable"),
            limit_bytes=cgroup_limit(MEMBERSHIP, CGROUPS),
            swap_total_bytes=total,
            swap_used_bytes=used,
            shm_bytes=shared,
            shm_free_bytes=shared_free,
        )

    def _shared() -> tuple[int | None, int | None]:
        """Size of /dev/shm and what is free; a size of 0 is a tmpfs without limit."""
        try:
            here = os.statvfs(SHARED)
        except (OSError, ValueError):
            return None, None
        if here.f_blocks == 0:
            return None, None
        return here.f_blocks * here.f_frsize, here.f_bavail * here.f_frsize

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


def meminfo(text: str) -> dict[str, int]:
    """The sizes of /proc/meminfo, in bytes."""
    found = re.findall(r"^(\w+): +([0-9]{1,15}) kB$", text, re.ASCII | re.MULTILINE)
    return {name: int(size) * 1024 for name, size in found}


def cgroup_limit(membership: Path, root: Path) -> int | None:
    """The tightest memory limit, in bytes, of the groups in `membership`; None: no limit."""
    text = reading.text(membership)
    limits = []
    for line in (text or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            limits += [_limit(folder / "memory.max") for folder in _upwards(root, group)]
        elif "memory" in controllers.split(","):
            folders = _upwards(root / "memory", group)
            limits += [_limit(folder / "memory.limit_in_bytes") for folder in folders]
    return min((limit for limit in limits if limit is not None), default=None)


def _upwards(root: Path, group: str) -> list[Path]:
    """The group's folder and those above it; in a container only the root may be there."""
    parts = [part for part in group.split("/") if part and part != ".."]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _limit(path: Path) -> int | None:
    limit = reading.number(path)
    return limit if limit is not None and 0 < limit < UNLIMITED_BYTES else None
