"""What changed in the user's folder during a trial, although nothing should have.

The agent redirects what a program writes through Python and the libraries that it knows, but a
library that writes by itself is missed. So the folder is compared before and after: names, sizes
and times, but no contents, for at most `LIMIT_S`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
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
    """Relative path -> (size in bytes, time of change in ns), or (-1, 0) for a folder."""
    seen: frozenset[str]
    """Folders with every entry in `entries`; not all folders if a limit was reached."""
    complete: bool


def take(folder: Path, limit_entries: int = LIMIT_ENTRIES, limit_s: float = LIMIT_S) -> Footprint:
    """The footprint of `folder`, outer folders first, so that a limit cuts off the innermost."""
    entries: dict[str, tuple[int, int]] = {}
    folders: set[str] = set()
    pending = deque([""])
    # The files that our own stdout and stderr go to, as in `flatout tune train.py > log`.
    files = set()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):  # Windows numbers no console and no pipe
                files.add((status.st_dev, status.st_ino))
    deadline, own_files = time.monotonic() + limit_s, frozenset(files)
    while pending:
        if len(entries) > limit_entries or time.monotonic() > deadline:
            return Footprint(entries, frozenset(folders), complete=False)
        inner = pending.popleft()
        listing = _list(folder / inner, inner, own_files)
        if listing is None:
            continue
        folders.add(inner)
        for path, (size, changed_ns) in listing.items():
            entries[path] = (size, changed_ns)
            if size == -1:
                pending.append(path)
    return Footprint(entries, frozenset(folders), complete=True)


def _list(
    folder: Path, inner: str, own_files: frozenset[tuple[int, int]]
) -> dict[str, tuple[int, int]] | None:
    """Entries of one folder, or None if it cannot be read."""
    entries = {}
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                if entry.name in IGNORED:
                    continue
                path = f"{inner}/{entry.name}" if inner else entry.name
                entries[path] = _measure(entry, own_files)
    except OSError:
        return None
    return entries


def _measure(entry: os.DirEntry[str], own_files: frozenset[tuple[int, int]]) -> tuple[int, int]:
    try:
        if entry.is_dir(follow_symlinks=False):
            return (-1, 0)
        if own_files and sys.platform == "win32":
            status = Path(entry.path).lstat()  # a listing there numbers no files
        else:
            status = entry.stat(follow_symlinks=False)
    except OSError:
        return (0, 0)  # gone since the listing: the other footprint does not have it
    if (status.st_dev, status.st_ino) in own_files:
        return (0, 0)
    return (status.st_size, status.st_mtime_ns)


def changed(before: Footprint, after: Footprint) -> tuple[str, ...]:
    """Paths that were made, removed or written in between, sorted; a new folder counts once.

    Only folders that both footprints hold in full are compared.
    """
    compared = before.seen & after.seen
    paths = {
        path
        for path in before.entries.keys() | after.entries.keys()
        if before.entries.get(path) != after.entries.get(path)
        and path.rpartition("/")[0] in compared
    }
    return tuple(sorted(paths))
