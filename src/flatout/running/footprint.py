"""What changed in the user's folder during a trial, although nothing should have.

The agent redirects what a program writes through Python and through the libraries it knows; a
library that writes by itself slips through. So the folder is looked at before and after: names,
sizes and times, no contents, and no longer than `LIMIT_S`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

IGNORED = frozenset({".git", ".flatout", "__pycache__", ".venv"})
LIMIT_ENTRIES = 200_000
LIMIT_S = 2.0


@dataclass(frozen=True)
class Footprint:
    """The files below a folder at one moment."""

    entries: dict[str, tuple[int, int]]
    """Path relative to the folder -> size in bytes and time of change in ns; folders: (-1, 0)."""
    seen: frozenset[str]
    """Folders of which every entry is in `entries`; not all of them where a limit was met."""
    complete: bool


def take(folder: Path, limit_entries: int = LIMIT_ENTRIES, limit_s: float = LIMIT_S) -> Footprint:
    """The footprint of `folder`, outer folders first so that a limit costs the innermost ones."""
    entries: dict[str, tuple[int, int]] = {}
    seen: set[str] = set()
    waiting = deque([""])
    until, own = time.monotonic() + limit_s, _own_output()
    while waiting:
        if len(entries) > limit_entries or time.monotonic() > until:
            return Footprint(entries, frozenset(seen), complete=False)
        inner = waiting.popleft()
        found = _list(folder / inner, inner, own)
        if found is None:
            continue
        seen.add(inner)
        for path, (size, changed_ns) in found.items():
            entries[path] = (size, changed_ns)
            if size == -1:
                waiting.append(path)
    return Footprint(entries, frozenset(seen), complete=True)


def _own_output() -> frozenset[tuple[int, int]]:
    """The files that our own stdout and stderr go to: `flatout tune train.py > log`."""
    found = set()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def _list(
    folder: Path, inner: str, own: frozenset[tuple[int, int]]
) -> dict[str, tuple[int, int]] | None:
    """Entries of one folder; None: it cannot be read."""
    found = {}
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                if entry.name in IGNORED:
                    continue
                path = f"{inner}/{entry.name}" if inner else entry.name
                found[path] = _measure(entry, own)
    except OSError:
        return None
    return found


def _measure(entry: os.DirEntry[str], own: frozenset[tuple[int, int]]) -> tuple[int, int]:
    try:
        if entry.is_dir(follow_symlinks=False):
            return (-1, 0)
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return (0, 0)  # gone between the listing and the look: not there in the other footprint
    if (status.st_dev, status.st_ino) in own:
        return (0, 0)
    return (status.st_size, status.st_mtime_ns)


def changed(before: Footprint, after: Footprint) -> tuple[str, ...]:
    """Paths that were made, removed or written in between, sorted; what is new as a whole, once.

    Compared are only folders that both footprints hold in full.
    """
    compared = before.seen & after.seen
    paths = {
        path
        for path in before.entries.keys() | after.entries.keys()
        if before.entries.get(path) != after.entries.get(path) and _parent(path) in compared
    }
    return tuple(sorted(paths))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
