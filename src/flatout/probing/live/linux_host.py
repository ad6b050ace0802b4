"""Figures of the Linux machine, or the container with its limits, from /proc and /sys."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from flatout_agent import limits

SECTOR_BYTES = 512
VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Devices whose blocks are also counted on the disks below them, or are on no disk."""


def counters(root: Path) -> dict[str, float]:
    """Growing counters: seconds of all cores, bytes, periods. Missing ones are unknown."""
    found = _cpu(root) | _disk(root) | _network(root)
    for line in _text(root / "proc/vmstat").splitlines():
        name, _, value = line.partition(" ")
        if name == "pswpin" and (pages := _number(value)) is not None:
            found["swap_in_bytes"] = pages * mmap.PAGESIZE
    periods = limits.throttled_periods(root)
    if periods is not None:
        found["periods_throttled"], found["periods"] = map(float, periods)
    return found


def levels(root: Path) -> dict[str, Any]:
    """Present values, by the names of `MachineSample`."""
    memory = limits.meminfo(root)
    total, limit = memory.get("MemTotal"), limits.memory_limit(root)
    available = limits.available_memory(root)
    bound = min(value for value in (total, limit) if value is not None) if total else limit
    used = None if bound is None or available is None else max(0, bound - available)
    swap_total, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
    load = _text(root / "proc/loadavg").split()
    return {
        "memory_bytes": bound,
        "memory_used_bytes": used,
        "swap_used_bytes": None
        if swap_total is None or swap_free is None
        else max(0, swap_total - swap_free),
        "load": _number(load[0]) if load else None,
    }


def _cpu(root: Path) -> dict[str, float]:
    """Seconds of the cores that this process may use; busy: its container's, if with a quota."""
    lines = [line.split()[:9] for line in _text(root / "proc/stat").splitlines()]
    cores = [words for words in lines if words and words[0][:3] == "cpu"]
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    names = {str(core) for core in usable}
    own = [words for words in cores[1:] if words[0][3:] in names]
    chosen = own if 0 < len(own) < len(cores) - 1 else cores[:1]
    ticks = [[_number(word) for word in words[1:]] for words in chosen]
    if not ticks or any(len(each) < 8 or None in each for each in ticks):
        return {}
    sums = [sum(tick or 0.0 for tick in column) for column in zip(*ticks, strict=True)]
    user, nice, system, idle, wait, interrupt, soft, steal = sums
    busy = user + nice + system + interrupt + soft
    used_s = limits.used_s(root)
    return {
        "cpu_busy_s": busy / 100 if used_s is None else used_s,
        "cpu_steal_s": steal / 100,
        "cpu_all_s": (busy + idle + wait + steal) / 100,
    }


def _disk(root: Path) -> dict[str, float]:
    read = written = 0.0
    lines = [line.split() for line in _text(root / "proc/diskstats").splitlines()]
    whole = [
        words
        for words in lines
        if len(words) > 9
        and not words[2].startswith(VIRTUAL_DISKS)
        and (root / "sys/block" / words[2]).exists()
    ]
    if not whole:
        return {}
    for words in whole:
        read += (_number(words[5]) or 0.0) * SECTOR_BYTES
        written += (_number(words[9]) or 0.0) * SECTOR_BYTES
    return {"disk_read_bytes": read, "disk_written_bytes": written}


def _network(root: Path) -> dict[str, float]:
    received = sent = 0.0
    known = False
    for line in _text(root / "proc/net/dev").splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if not colon or name.strip() == "lo" or len(words) < 9:
            continue
        known = True
        received += _number(words[0]) or 0.0
        sent += _number(words[8]) or 0.0
    return {"network_received_bytes": received, "network_sent_bytes": sent} if known else {}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e18 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
