"""The relevant disks: of the current folder, temporary files and compilers' caches."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from flatout.nouns.machine import Disk
from flatout.probing import reading

NETWORK = re.compile(
    r"nfs[34]?|cifs|smb(2|3|fs)|ceph|lustre|gpfs|beegfs|glusterfs|afs|ncpfs|orangefs|pvfs2|panfs"
    r"|wekafs|afpfs|webdav|fuse\.(sshfs|s3fs|gcsfuse|glusterfs|ceph|ceph-fuse|rclone|juicefs"
    r"|blobfuse2?|mount-s3|goofys)",
    re.IGNORECASE,
)
"""File systems of other machines; 9p, virtiofs and fuse may be either, and are left out."""


def disks(environment: Mapping[str, str] | None = None) -> tuple[Disk, ...] | None:
    """The working folder, the temporary folder, and the folders of compilers' caches."""
    places = _places(os.environ if environment is None else environment)
    mounted = mounts()
    return tuple(_disk(use, path, mounted) for use, path in places)


def _places(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Each use and its folder, without a removed current folder or a missing home."""
    places = []
    with contextlib.suppress(OSError):
        places.append(("work", str(Path.cwd())))
    places.append(("temporary", _temporary(environment)))
    caches = [environment.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    caches.insert(0, environment.get("XDG_CACHE_HOME") or _home_cache())
    return places + [("cache", path) for path in dict.fromkeys(caches) if path]


def _temporary(environment: Mapping[str, str]) -> str:
    """The folder that Python chooses, or the environment's if none is writable."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return environment.get("TMPDIR") or "/tmp"


def _home_cache() -> str | None:
    try:
        return str(Path.home() / ".cache")
    except RuntimeError:
        return None


def _disk(use: str, path: str, mount_points: Iterable[tuple[str, str]]) -> Disk:
    """Facts about the folder, or its nearest existing ancestor."""
    folder = _nearest(Path(path))
    name = file_system(os.path.realpath(folder), mount_points)
    total, free = _sizes(folder)
    return Disk(
        path=path,
        use=use,
        total_bytes=total,
        free_bytes=free,
        file_system=name,
        network=None if name is None else NETWORK.fullmatch(name) is not None,
    )


def _nearest(path: Path) -> Path:
    folders = (path, *path.parents)
    return next((folder for folder in folders if reading.exists(folder)), folders[-1])


def _sizes(folder: Path) -> tuple[int | None, int | None]:
    """Total bytes, and bytes free for this user; some network file systems report 0 and 0."""
    try:
        usage = shutil.disk_usage(folder)
    except (OSError, ValueError):
        return None, None
    return (usage.total, usage.free) if usage.total > 0 else (None, None)


def file_system(path: str, mount_points: Iterable[tuple[str, str]]) -> str | None:
    """That of the longest mounted folder that holds `path`; of the later one if mounted twice."""
    best: tuple[str, str] | None = None
    for mounted, name in mount_points:
        folder = mounted.rstrip("/\\")
        holds = path == folder or path.startswith((folder + "/", folder + "\\")) or not folder
        if holds and (best is None or len(folder) >= len(best[0])):
            best = folder, name
    return best[1] if best is not None else None


def mounts() -> list[tuple[str, str]]:
    """Folder and file system of what is mounted; outside Linux of the disks alone."""
    try:
        parts = psutil.disk_partitions(all=sys.platform == "linux")
    except (OSError, RuntimeError):
        return []
    return [(part.mountpoint, part.fstype) for part in parts]
