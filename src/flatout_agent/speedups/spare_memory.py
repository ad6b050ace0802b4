"""How much host memory this process may still take: the machine's, its control groups', its share.

A container is killed when it passes its group's limit, whatever the machine still has free.
"""

from __future__ import annotations

from pathlib import Path

from flatout_agent.speedups.cores import local_processes

ROOT = Path("/")


def spare_memory(root: Path = ROOT) -> int | None:
    """Bytes; other training processes of the machine get their share. None: not known here."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*found, *_in_groups(root)]) // local_processes() if found else None


def _in_groups(root: Path) -> list[int]:
    """What the limit of each control group above this process leaves."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    left: list[int | None] = []
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        parts = [part for part in group.split("/") if part and part != ".."]
        for count in range(len(parts) + 1):
            if not controllers:
                folder = (root / "sys/fs/cgroup").joinpath(*parts[:count])
                left.append(_left(folder, "memory.max", "memory.current"))
            elif "memory" in controllers.split(","):
                folder = (root / "sys/fs/cgroup/memory").joinpath(*parts[:count])
                left.append(_left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    return [value for value in left if value is not None]


def _left(folder: Path, limit: str, used: str) -> int | None:
    try:
        most = int((folder / limit).read_text(encoding="ascii"))
        taken = int((folder / used).read_text(encoding="ascii"))
        words = (folder / "memory.stat").read_text(encoding="ascii").split()
    except (OSError, ValueError):  # "max": no limit
        return None
    # Pages of files that could be dropped are counted as used there.
    droppable = dict(zip(words[::2], words[1::2], strict=False)).get("inactive_file", "0")
    return max(0, most - taken + int(droppable))
