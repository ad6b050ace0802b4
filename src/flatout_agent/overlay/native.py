"""The operating system's own file functions, untouched by our patches.

`os.open` and the like are attributes of the module `os`, which the overlay replaces. Python keeps
the originals in the modules `posix` or `nt` and `_io`; the overlay's own work goes through those.
"""
# ruff: noqa: PTH120

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Any

system: Any = sys.modules[os.name]
raw_io: Any = sys.modules["_io"]

BLOCK = 1 << 20
LONG_PATH = 240
PREFIX = "\\\\?\\"
SERVER_PREFIX = "\\\\?\\UNC\\"


def failure(code: int, path: Any, second: Any = None) -> OSError:
    """The error that the system itself would raise for `path`."""
    if second is None:
        return OSError(code, os.strerror(code), shown(path))
    return OSError(code, os.strerror(code), shown(path), None, shown(second))


def shown(path: Any) -> Any:
    """A path as shown in errors."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def lstat(path: str) -> os.stat_result | None:
    """Status of `path` without following links, or None if nothing is there."""
    try:
        status: os.stat_result = system.lstat(path)
    except OSError:
        return None
    return status


def is_link(status: os.stat_result) -> bool:
    """Whether it is a symbolic link, or a junction on Windows."""
    tag = getattr(status, "st_reparse_tag", 0)
    return stat.S_ISLNK(status.st_mode) or tag == getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", -1)


def read_link(path: str) -> str:
    """Where a link points, without the prefix that Windows adds."""
    return plain(system.readlink(path))


def lengthened(path: str) -> str:
    """The form of an absolute path in which Windows takes one of this length."""
    if sys.platform != "win32" or len(path) <= LONG_PATH or path.startswith(PREFIX):
        return path
    return SERVER_PREFIX + path[2:] if path.startswith("\\\\") else PREFIX + path


def plain(path: str) -> str:
    """The usual form of a path that `lengthened`, or Windows itself, has given a prefix."""
    if path[: len(SERVER_PREFIX)].upper() == SERVER_PREFIX:
        return "\\\\" + path[len(SERVER_PREFIX) :]
    is_on_drive = path.startswith(PREFIX) and path[len(PREFIX) + 1 :].startswith(":")
    return path[len(PREFIX) :] if is_on_drive else path


def make_folders(path: str) -> None:
    """`os.makedirs(path, exist_ok=True)` with the system's own functions."""
    try:
        system.mkdir(path)
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        system.mkdir(path)
    except FileExistsError:
        if not stat.S_ISDIR(system.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None


def copy_file(source: str, target: str) -> None:
    """Copy contents, mode and times of a file. `target` is removed again if that fails."""
    status = system.stat(source)
    try:
        with raw_io.open(source, "rb", 0) as read, raw_io.open(target, "wb", 0) as write:
            while block := read.read(BLOCK):
                written = 0
                while written < len(block):
                    written += write.write(block[written:])
        system.chmod(target, stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
        system.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    except BaseException:
        if lstat(target) is not None:
            system.unlink(target)
        raise
