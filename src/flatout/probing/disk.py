"""The relevant disks: of the current folder, temporary files and compilers' caches."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from flatout.nouns.machine import Disk
from flatout.probing import reading

MOUNTS = Path("/proc/self/mountinfo")
BLOCKS = Path("/sys/dev/block")
BLOCKS_BY_NAME = Path("/sys/class/block")

NETWORK = frozenset(
    (
        "nfs",
        "nfs3",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "smbfs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "afs",
        "ncpfs",
        "orangefs",
        "pvfs2",
        "panfs",
        "wekafs",
        "afpfs",
        "webdav",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "fuse.rclone",
        "fuse.juicefs",
        "fuse.blobfuse",
        "fuse.blobfuse2",
        "fuse.mount-s3",
        "fuse.goofys",
    )
)
LOCAL = frozenset(
    (
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "bcachefs",
        "jfs",
        "reiserfs",
        "tmpfs",
        "ramfs",
        "devtmpfs",
        "overlay",
        "aufs",
        "squashfs",
        "erofs",
        "vfat",
        "exfat",
        "ntfs",
        "ntfs3",
        "apfs",
        "hfs",
        "refs",
        "fat32",
    )
)
"""Local file systems; others (9p, virtiofs, fuse) may be either, so they are unknown."""
VIRTUAL = re.compile(r"/(virtio[0-9]+|vmbus|VMBUS:[0-9A-F]+|xen|vbd-[0-9]+)/", re.IGNORECASE)
VIRTUAL_MAKERS = re.compile(r"QEMU|VBOX|VMware|Msft|Google|Amazon|Virtual", re.IGNORECASE)


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    device: str
    """Major and minor number: 8:2."""
    folder: str
    file_system: str
    source: str


def disks(environment: Mapping[str, str] | None = None) -> tuple[Disk, ...] | None:
    """The working folder, the temporary folder, and the folders of compilers' caches."""
    mount_points = mounts()
    places = _places(os.environ if environment is None else environment)
    return tuple(_disk(use, path, mount_points) for use, path in places)


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


def _disk(use: str, path: str, mount_points: Iterable[Mount]) -> Disk:
    """Facts about the folder, or its nearest existing ancestor."""
    folder = _nearest(Path(path))
    mount = mount_of(os.path.realpath(folder), mount_points)
    total, free = _sizes(folder)
    return Disk(
        path=path,
        use=use,
        total_bytes=total,
        free_bytes=free,
        file_system=mount.file_system if mount else None,
        rotational=rotational(mount) if mount else None,
        network=network(mount.file_system) if mount else None,
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


def network(file_system: str) -> bool | None:
    """Whether the files are on another machine, or None if the file system does not show it."""
    name = file_system.lower()
    return True if name in NETWORK else False if name in LOCAL else None


def mount_of(path: str, mount_points: Iterable[Mount]) -> Mount | None:
    """The mount of the longest folder that holds `path`; the later one if mounted twice."""
    best = None
    for mount in mount_points:
        folder = mount.folder.rstrip("/\\")
        holds = path == folder or path.startswith((folder + "/", folder + "\\")) or not folder
        if holds and (best is None or len(folder) >= len(best.folder.rstrip("/\\"))):
            best = mount
    return best


def from_mountinfo(text: str) -> tuple[Mount, ...]:
    """The lines of /proc/self/mountinfo; malformed ones are left out."""
    entries = []
    for line in text.splitlines():
        first, separator, last = line.partition(" - ")
        left, right = first.split(" "), last.split(" ")
        if separator and len(left) >= 6 and len(right) >= 2:
            entries.append(Mount(left[2], _unescaped(left[4]), right[0], _unescaped(right[1])))
    return tuple(entries)


def _unescaped(text: str) -> str:
    r"""The text with space, tab, line end and backslash for \040, \011, \012, \134."""
    return re.sub(r"\\(040|011|012|134)", lambda match: chr(int(match[1], 8)), text)


def rotational(mount: Mount) -> bool | None:
    """Whether it is a spinning disk, or None if unknown or if a virtual machine says it is one."""
    return _is_rotational(_block(mount), depth=0)


def _block(mount: Mount) -> Path | None:
    """The block device's folder, by name for file systems of several disks (without a number)."""
    if re.fullmatch(r"[1-9][0-9]*:[0-9]+", mount.device):
        return BLOCKS / mount.device
    if not mount.source.startswith("/dev/"):
        return None
    try:
        return BLOCKS_BY_NAME / Path(os.path.realpath(mount.source)).name
    except (OSError, ValueError):
        return None


def _is_rotational(block: Path | None, depth: int) -> bool | None:
    if block is None or depth > 4 or not reading.exists(block):
        return None
    device = block.resolve()
    parts = reading.entries(device / "slaves")
    if parts:  # LVM, encryption, RAID: the underlying disks decide
        answers = {_is_rotational(part, depth + 1) for part in parts}
        return True if True in answers else None if None in answers else False
    disk = device.parent if reading.exists(device / "partition") else device
    flag = {"0": False, "1": True}.get(reading.text(disk / "queue/rotational") or "")
    return None if flag and _virtual(disk) else flag


def _virtual(disk: Path) -> bool:
    maker = [reading.text(disk / "device" / name) or "" for name in ("vendor", "model")]
    by_place = VIRTUAL.search(f"{disk}/") or "/devices/virtual/" in f"{disk}/"
    return bool(by_place or VIRTUAL_MAKERS.search(" ".join(maker)))


if sys.platform == "linux":

    def mounts() -> tuple[Mount, ...]:
        """What is mounted where."""
        return from_mountinfo(reading.text(MOUNTS) or "")

else:

    def mounts() -> tuple[Mount, ...]:
        """What is mounted where."""
        try:
            parts = psutil.disk_partitions(all=False)
        except (OSError, RuntimeError):
            return ()
        return tuple(Mount("", part.mountpoint, part.fstype, part.device) for part in parts)
