"""How many cores this process may really use: affinity and the cgroup's CPU quota.

`os.cpu_count()` tells what the machine has. In a container or a batch job that is often many
times what the process gets, and a thread or a worker per absent core costs more than it brings.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use at once, at least 1; a quota of 2.5 cores counts as 2."""
    cores = _affinity()
    if sys.platform == "linux":
        quota = cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
        if quota is not None:
            cores = min(cores, int(quota))
    return max(1, cores)


def local_processes() -> int:
    """Training processes that share this machine, as torchrun and its like announce it."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) > 0 else 1


def _affinity() -> int:
    if sys.platform != "win32" and sys.platform != "darwin":
        return len(os.sched_getaffinity(0))
    count = getattr(os, "process_cpu_count", os.cpu_count)()  # 3.13: knows affinity on Windows
    return int(count or 1)


def cgroup_quota(membership: Path, root: Path) -> float | None:
    """The tightest CPU quota, in cores, of the groups in `membership`; None: no quota."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            quotas += [_v2(folder) for folder in _upwards(root, group)]
        elif "cpu" in controllers.split(","):
            for name in (controllers, "cpu"):
                quotas += [_v1(folder) for folder in _upwards(root / name, group)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _upwards(root: Path, group: str) -> list[Path]:
    """The group's folder and those above it, up to `root`: the tightest of them holds.

    In a container the path may name a place outside of what is mounted; the root still counts.
    """
    parts = [part for part in group.split("/") if part and part != ".."]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _v2(folder: Path) -> float | None:
    words = _words(folder / "cpu.max")
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _v1(folder: Path) -> float | None:
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    if len(quota) != 1 or len(period) != 1 or not quota[0].isdigit() or not period[0].isdigit():
        return None
    return int(quota[0]) / int(period[0]) if int(period[0]) else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
