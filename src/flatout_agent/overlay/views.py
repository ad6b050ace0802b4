"""The system calls that only read, as the overlay answers them: `os.stat`, `os.scandir` ..."""
# ruff: noqa: PTH118, PTH119

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from flatout_agent.overlay.changes import as_text
from flatout_agent.overlay.index import EntryKind, OverlayEntry, fold
from flatout_agent.overlay.native import failure, is_link, shown, system
from flatout_agent.overlay.overlay import Overlay


def looking(overlay: Overlay, call: str) -> Callable[..., Any]:
    """A call that reads the file at its first argument; `call` is its name in `os`."""
    original = getattr(system, call)
    never_follows = call in ("lstat", "readlink")

    def look(path: Any, *args: Any, **options: Any) -> Any:
        if overlay.idle() or options.get("dir_fd") is not None:
            return original(path, *args, **options)
        name = as_text(path)
        where = None
        if name is not None:
            follow = not never_follows and options.get("follow_symlinks", True)
            try:
                where = look_up(overlay, name, path, follow)
            except OSError:
                if call == "access":
                    return False
                raise
        if where is None:
            return original(path, *args, **options)
        if call == "readlink" and isinstance(path, bytes):
            where = os.fsencode(where)
        return renaming_errors(path, where, original, where, *args, **options)

    return look


def look_up(overlay: Overlay, name: str, path: Any, follow: bool = True) -> Any:
    """Where to read; if our code fails, the system answers as without the overlay."""
    try:
        return overlay.readable(name, follow)
    except OSError as error:
        raise failure(error.errno or errno.EIO, path) from None
    except Exception:
        return None


def renaming_errors(path: Any, where: Any, call: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """Make the call; an error about the place in scratch is reported for the program's own path."""
    try:
        return call(*args, **kw)
    except OSError as error:
        if error.filename == where:
            error.filename = shown(path)
        raise


class Listed:
    """An `os.DirEntry` for an entry that only the overlay has."""

    def __init__(self, folder: Any, entry: OverlayEntry, overlay: Overlay) -> None:
        name = os.path.basename(entry.path)
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path: Any = os.path.join(folder, self.name)
        self._entry = entry
        self._overlay = overlay

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_symlink(self) -> bool:
        """os.DirEntry.is_symlink"""
        return self._entry.kind is EntryKind.LINK

    def is_junction(self) -> bool:
        """os.DirEntry.is_junction"""
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """os.DirEntry.is_dir"""
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """os.DirEntry.is_file"""
        return self._is(stat.S_ISREG, follow_symlinks)

    def _is(self, test: Callable[[int], bool], follow: bool) -> bool:
        try:
            return test(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """os.DirEntry.stat"""
        status: os.stat_result
        if self._entry.kind is not EntryKind.LINK or not follow_symlinks:
            status = system.lstat(self._entry.where)
            if not is_link(status) or not follow_symlinks:
                return status
        where = self._overlay.readable(self._entry.path)
        status = system.stat(self._entry.path if where is None else where)
        return status

    def inode(self) -> int:
        """os.DirEntry.inode"""
        return int(system.lstat(self._entry.where).st_ino)


class Renamed:
    """An `os.DirEntry` of the system, under the path by which the program knows its folder."""

    def __init__(self, real_entry: Any, folder: Any) -> None:
        self._real_entry = real_entry
        self.name = os.fsencode(real_entry.name) if isinstance(folder, bytes) else real_entry.name
        self.path = os.path.join(folder, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real_entry, name)


class ScandirListing:
    """What `os.scandir` returns: an iterator that can be closed and used with `with`."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> ScandirListing:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        """Stop."""
        self._entries = iter(())

    def __enter__(self) -> ScandirListing:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Listings:
    """`os.listdir` and `os.scandir`."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay

    def _folder(self, path: Any) -> str | None:
        """The folder, normalised, or None if nothing in it differs from the system's answer."""
        name = as_text(path) if path is not None else "."
        if self.overlay.idle() or name is None:
            return None
        try:
            spot = self.overlay.locate(name)
        except OSError as error:
            raise failure(error.errno or errno.EIO, path) from None
        if (
            spot.entry is None
            and not spot.moved
            and fold(spot.path) not in self.overlay.index.children
        ):
            return None
        kind = self.overlay.kind(spot)
        if kind is None:
            raise failure(errno.ENOENT, path)
        if kind is not EntryKind.FOLDER:
            raise failure(errno.ENOTDIR, path)
        return spot.path

    def listdir(self, path: Any = None) -> list[Any]:
        """os.listdir"""
        folder = self._folder(path)
        if folder is None:
            real_names: list[Any] = system.listdir(path)
            return real_names
        names = list(self.overlay.names(folder))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def scandir(self, path: Any = None) -> Any:
        """os.scandir"""
        folder = self._folder(path)
        if folder is None:
            return system.scandir(path)
        prefix = "." if path is None else os.fspath(path)
        return ScandirListing(iter(self._entries(folder, prefix)))

    def _entries(self, folder: str, prefix: Any) -> list[Any]:
        """The user's files that no change hides, then the changes."""
        changed = self.overlay.index.children.get(fold(folder), {})
        entries: list[Any] = []
        try:
            with system.scandir(folder) as real:
                entries = [
                    Renamed(real_entry, prefix)
                    for real_entry in real
                    if fold(real_entry.name) not in changed
                ]
        except OSError:
            entries = []
        for entry in self.overlay.index.within(folder):
            if entry.kind is not EntryKind.GONE:
                entries.append(Listed(prefix, entry, self.overlay))
        return entries


def path_tests(stat_of: Callable[..., Any], lstat_of: Callable[..., Any]) -> dict[str, Any]:
    """`os.path.exists` and the like, which Python on Windows does not build on `os.stat`."""

    def test(status_of: Callable[..., Any], holds: Callable[[os.stat_result], bool]) -> Any:
        def answer(path: Any) -> bool:
            try:
                return holds(status_of(path))
            except (OSError, ValueError):
                return False

        return answer

    return {
        "exists": test(stat_of, lambda status: True),
        "lexists": test(lstat_of, lambda status: True),
        "isfile": test(stat_of, lambda status: stat.S_ISREG(status.st_mode)),
        "isdir": test(stat_of, lambda status: stat.S_ISDIR(status.st_mode)),
        "islink": test(lstat_of, lambda status: stat.S_ISLNK(status.st_mode)),
        "isjunction": test(
            lstat_of, lambda status: is_link(status) and not stat.S_ISLNK(status.st_mode)
        ),
    }
