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
    """The working folder, the temporary folder, and the folders of compilers' caches.

    A removed current folder and a missing home are left out.
    """
    environment = os.environ if environment is None else environment
    places = []
    with contextlib.suppress(OSError):
        places.append(("work", str(Path.cwd())))
    try:
        temporary = tempfile.gettempdir()
    except OSError:  # no folder is writable
        temporary = environment.get("TMPDIR") or "/tmp"
    places.append(("temporary", temporary))
    users = environment.get("XDG_CACHE_HOME")
    if not users:
        with contextlib.suppress(RuntimeError):
            users = str(Path.home() / ".cache")
    caches = [users, *map(environment.get, ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"))]
    places += [("cache", path) for path in dict.fromkeys(caches) if path]
    mounted, found = mounts(), []
    for use, path in places:
        folders = (Path(path), *Path(path).parents)
        folder = next((folder for folder in folders if reading.exists(folder)), folders[-1])
        name = file_system(os.path.realpath(folder), mounted)
        total = free = None
        with contextlib.suppress(OSError, ValueError):
            total, _, free = shutil.disk_usage(folder)
        if not total:  # some network file systems report 0 and 0
            total = free = None
        found.append(
            Disk(
                path=path,
                use=use,
                total_bytes=total,
                free_bytes=free,
                file_system=name,
                network=None if name is None else NETWORK.fullmatch(name) is not None,
            )
        )
    return tuple(found)


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
