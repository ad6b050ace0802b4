"""Main memory that this process may use: what the machine has, and the cgroup's limit."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

MEMBERSHIP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def usable_bytes() -> int | None:
    """The smaller of the machine's memory and the tightest limit of this process's groups."""
    try:
        total = int(psutil.virtual_memory().total)
    except (OSError, RuntimeError):
        return None
    limit = cgroup_limit(MEMBERSHIP, CGROUPS) if sys.platform == "linux" else None
    return total if limit is None else min(total, limit)


def cgroup_limit(membership: Path, root: Path) -> int | None:
    """The tightest memory limit, in bytes, of the groups in `membership`; None: no limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
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
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
