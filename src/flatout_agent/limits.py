"""The resources left to this process: cores, main memory, and the limits of its control groups.

`os.cpu_count()` and /proc/meminfo describe the machine. In a container, a batch job or a systemd
slice a process gets less. A thread per missing core costs more than it brings, and a process that
takes more memory than its group may use is killed, even if the machine has memory free.

Every group above this process counts, and the tightest holds. Version 1 of control groups (a tree
for each controller), version 2 (one tree) and the hybrid of both are read; in a container, where
/proc/self/cgroup may name a place outside the mounted part, the mounted part counts. Paths are
below `root`, so tests can supply another machine's files. None means no limit, or unknown.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
MOST_BYTES = 2**20
"""No file that is read here is larger."""
UNLIMITED_BYTES = 2**62
"""Version 1 writes "no limit" as the largest number of whole pages below 2**63."""
CACHE_SHARE = 0.25
"""Share of the free memory that a cache may take; the model's activations and the program's other
data come later."""
PAGES_OF_MAC = ("vm.page_free_count", "vm.page_purgeable_count", "vm.page_pageable_external_count")
"""What can be taken there: free pages, purgeable caches, and pages of files."""
LOCAL_PROCESSES = ("LOCAL_WORLD_SIZE", "FLATOUT_RANKS")
"""Set by torchrun and its like, and for the ranks of `flatout run` (`wire.SIZE_ENV`)."""
LOCAL_RANKS = "FLATOUT_LOCAL_RANKS"
"""Takes precedence if set, as `wire.SIZE_ENV` then includes the ranks of other machines."""


def usable_cores() -> int:
    """Cores this process may use at once, at least 1; a quota of 2.5 cores counts as 2."""
    cores = _affinity()
    quota = cpu_quota(ROOT)
    return max(1, cores if quota is None else min(cores, int(quota)))


def local_processes() -> int:
    """The number of training processes that share this machine, as announced by their launcher."""
    names = (LOCAL_RANKS,) if LOCAL_RANKS in os.environ else LOCAL_PROCESSES
    texts = (os.environ.get(name, "") for name in names)
    return max((int(text) for text in texts if text.isdigit()), default=1) or 1


def world_size() -> int:
    """The number of processes that train together, from the variables of torchrun and the like."""
    return int(os.environ.get("WORLD_SIZE", "1") or 1)


def cpu_quota(root: Path | None = None) -> float | None:
    """The tightest CPU quota of the groups above this process, in cores."""
    quotas = [
        _quota_v2(group.folder) if group.version == 2 else _quota_v1(group.folder)
        for group in _groups(root or ROOT, "cpu")
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def used_s(root: Path | None = None) -> float | None:
    """CPU seconds so far of the group with the tightest quota, or None if there is none or it is
    unknown.
    """
    used = []
    for group in _groups(root or ROOT, "cpu"):
        if group.version == 2:
            quota, unit = _quota_v2(group.folder), 1e6
            words = _text(group.folder / "cpu.stat").split()
            count = _whole(dict(zip(words[::2], words[1::2], strict=False)).get("usage_usec", ""))
        else:
            quota, unit = _quota_v1(group.folder), 1e9
            count = _whole(_text(group.folder / "cpuacct.usage"))
        if quota is not None and count is not None:
            used.append((quota, count / unit))
    return min(used)[1] if used else None


def throttled_s(root: Path | None = None) -> float | None:
    """Seconds so far in which a CPU quota held this process's group back, or None if unknown."""
    seconds = []
    for group in _groups(root or ROOT, "cpu"):
        lines = _text(group.folder / "cpu.stat").splitlines()
        counts = dict(line.split()[:2] for line in lines if " " in line)
        if counts.get("throttled_usec", "").isdigit():
            seconds.append(int(counts["throttled_usec"]) / 1e6)
        elif counts.get("throttled_time", "").isdigit():
            seconds.append(int(counts["throttled_time"]) / 1e9)
    return max(seconds, default=None)


def throttled_periods(root: Path | None = None) -> tuple[int, int] | None:
    """(periods so far in which the quota of this process's group ran out, all periods).

    The values belong to the group above it that ran out most often; None if unknown.
    """
    counted = []
    for group in _groups(root or ROOT, "cpu"):
        lines = _text(group.folder / "cpu.stat").splitlines()
        counts = dict(line.split()[:2] for line in lines if " " in line)
        out, periods = counts.get("nr_throttled", ""), counts.get("nr_periods", "")
        if out.isdigit() and periods.isdigit():
            counted.append((int(out), int(periods)))
    return max(counted, default=None)


def memory_limit(root: Path | None = None) -> int | None:
    """The tightest memory limit of the groups above this process, in bytes."""
    limits = [_memory_limit(group) for group in _groups(root or ROOT, "memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def available_memory(root: Path | None = None) -> int | None:
    """Bytes of main memory that can still be taken: the least left by the machine and the groups.

    File pages that the kernel would drop count as free. None if the system does not say.
    """
    available = meminfo(root).get("MemAvailable")
    if available is None and root is None:
        available = _free_elsewhere()
    if available is None:
        return None
    left = [_memory_left(group) for group in _groups(root or ROOT, "memory")]
    return min([available, *(size for size in left if size is not None)])


def spare_memory(root: Path | None = None) -> int | None:
    """`available_memory`, divided among the training processes of this machine."""
    available = available_memory(root)
    return None if available is None else available // local_processes()


def meminfo(root: Path | None = None) -> dict[str, int]:
    """The sizes in /proc/meminfo, in bytes; empty if it cannot be read."""
    text = _text((root or ROOT) / "proc/meminfo")
    sizes = re.findall(r"^(\w+): +([0-9]{1,15}) kB$", text, re.ASCII | re.MULTILINE)
    return {name: int(size) * 1024 for name, size in sizes}


def _free_elsewhere() -> int | None:
    """The machine's free memory on systems other than Linux, or None if unknown."""
    try:
        if sys.platform == "win32":
            return _free_on_windows()
        return _free_on_mac() if sys.platform == "darwin" else None
    except (ImportError, AttributeError, OSError):  # a Python without ctypes, an unusual system
        return None


def _free_on_windows() -> int | None:
    """Free main memory, or what programs may still commit if that is less."""
    if sys.platform != "win32":
        return None
    import ctypes

    sizes = ("total", "free", "commit", "free_commit", "virtual", "free_virtual", "extended")

    class MemoryStatus(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            *((name, ctypes.c_uint64) for name in sizes),
        )

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(min(status.free, status.free_commit))


def _free_on_mac() -> int | None:
    """Free pages, and those of files and caches that the system would drop."""
    import ctypes

    def counted(name: str) -> int | None:
        value, size = ctypes.create_string_buffer(8), ctypes.c_size_t(8)
        question = name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)
        failed = ctypes.CDLL(None).sysctlbyname(*question)
        return None if failed else int.from_bytes(value.raw[: size.value], "little")

    page, *counts = map(counted, ("vm.pagesize", *PAGES_OF_MAC))
    known = [count for count in counts if count is not None]
    return page * sum(known) if page and len(known) == len(counts) else None


def _affinity() -> int:
    if sys.platform != "win32" and sys.platform != "darwin":
        return len(os.sched_getaffinity(0))
    count = getattr(os, "process_cpu_count", os.cpu_count)()  # 3.13: knows affinity on Windows
    return int(count or 1)


@dataclass(frozen=True)
class _Group:
    """A control group: its folder, and the version of its tree."""

    folder: Path
    version: int


def _groups(root: Path, controller: str) -> Iterator[_Group]:
    """The groups above this process in each tree that may have the controller."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        parts = [part for part in path.split("/") if part and part != ".."]
        folders: dict[Path, None] = {}
        for top, outside in _trees(root, controllers, controller):
            inside = parts[len(outside) :] if parts[: len(outside)] == outside else parts
            for count in range(len(inside), -1, -1):
                folders[top.joinpath(*inside[:count])] = None
        for folder in folders:
            yield _Group(folder, version)


def _trees(root: Path, controllers: str, controller: str) -> Iterator[tuple[Path, list[str]]]:
    """(folder, the path that it shows) of the trees: the usual places, and what is mounted.

    A container may have only a part of the tree mounted, which then does not contain that part's
    path.
    """
    base = root / "sys/fs/cgroup"
    for name in (controllers, controller) if controllers else ("", "unified"):
        yield base / name, []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, kind = line.partition(" - ")
        words, types = fields.split(" "), kind.split(" ")
        if len(words) < 5 or len(types) < 3:
            continue
        matches = (
            types[0] == "cgroup" and controller in types[2].split(",")
            if controllers
            else types[0] == "cgroup2"
        )
        if matches:
            shown = [part for part in words[3].split("/") if part and part != ".."]
            yield root / words[4].lstrip("/"), shown


def _quota_v2(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    return _ratio(words) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    return _ratio([_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")])


def _ratio(words: list[str]) -> float | None:
    """Quota over period, both in microseconds; "max" or -1 is no quota."""
    quota, period = (_whole(word) for word in words)
    return quota / period if quota is not None and period else None


def _memory_limit(group: _Group) -> int | None:
    if group.version == 2:
        limits = [_whole(_text(group.folder / "memory.max"))]
    else:
        limits = [
            _whole(_text(group.folder / "memory.limit_in_bytes")),
            # Includes the groups above, even if those are not mounted.
            _statistic(group, "hierarchical_memory_limit"),
        ]
    real = [limit for limit in limits if limit is not None and 0 < limit < UNLIMITED_BYTES]
    return min(real, default=None)


def _memory_left(group: _Group) -> int | None:
    limit = _memory_limit(group)
    name = "memory.current" if group.version == 2 else "memory.usage_in_bytes"
    used = _whole(_text(group.folder / name))
    if limit is None or used is None:
        return None
    # Pages of files that could be dropped count as used there.
    return max(0, limit - used + (_statistic(group, "inactive_file") or 0))


def _statistic(group: _Group, name: str) -> int | None:
    words = _text(group.folder / "memory.stat").split()
    return _whole(dict(zip(words[::2], words[1::2], strict=False)).get(name, ""))


def _whole(text: str) -> int | None:
    """A number in decimal digits, or None for anything else."""
    return int(text) if re.fullmatch(r"[0-9]{1,20}\n?", text) else None


def _text(path: Path) -> str:
    """The text of a small kernel file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""
