"""The system calls that change files, as the overlay does them: `os.mkdir`, `os.rename` and so on.

Each has the same arguments, results and errors as the system's own. Calls that do not concern the
overlay (an open file's number, a path relative to an open folder, an unprotected path) go to the
system unchanged.
"""
# ruff: noqa: PTH118

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from flatout_agent.overlay.index import EntryKind
from flatout_agent.overlay.native import failure, lstat, system
from flatout_agent.overlay.overlay import Overlay, Spot

Call = Callable[..., Any]


def as_text(path: Any) -> str | None:
    """The path as text, or None for an open file's number, an empty path or no path."""
    if isinstance(path, str):
        return path or None
    if isinstance(path, (bytes, os.PathLike)):
        return os.fsdecode(path) or None
    return None


class Changes:
    """One method per system call."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay

    def _new(self, name: str, *names: Any) -> Spot | None:
        """The place for a new file or folder, or None if the system makes it."""
        spot = self.overlay.locate(name, follow=False)
        if self.overlay.left_alone(spot):
            return None
        if self.overlay.kind(spot) is not None and not self.overlay.only_given(spot):
            raise failure(errno.EEXIST, *names)
        self.overlay.need_parent(spot, *names)
        return spot

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """os.mkdir"""
        name = as_text(path) if dir_fd is None else None
        with self.overlay.store.lock:
            spot = self._new(name, path) if name is not None else None
            if spot is None:
                self._native("mkdir", path, name, mode, dir_fd=dir_fd)
                return
            where = self.overlay.place(spot.path)
            system.mkdir(where, mode)
            self.overlay.put(spot.path, EntryKind.FOLDER, where)

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        """os.remove and os.unlink"""
        self._take_away("unlink", path, dir_fd, folder=False)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """os.rmdir"""
        self._take_away("rmdir", path, dir_fd, folder=True)

    def _take_away(self, call: str, path: Any, dir_fd: int | None, folder: bool) -> None:
        name = as_text(path) if dir_fd is None else None
        with self.overlay.store.lock:
            spot = self.overlay.locate(name, follow=False) if name is not None else None
            if spot is None or self.overlay.left_alone(spot):
                self._native(call, path, name, dir_fd=dir_fd)
                return
            kind = self.overlay.kind(spot)
            if kind is None:
                raise failure(errno.ENOENT, path)
            if folder:
                if kind is not EntryKind.FOLDER:
                    raise failure(errno.ENOTDIR, path)
                if next(self.overlay.names(spot.path), None) is not None:
                    raise failure(errno.ENOTEMPTY, path)
            elif kind is EntryKind.FOLDER:
                raise failure(errno.EISDIR if sys.platform == "linux" else errno.EACCES, path)
            self.overlay.need_parent(spot, path)
            self.overlay.discard(spot.entry)
            self.overlay.hide(spot.path)

    def symlink(
        self,
        src: Any,
        dst: Any,
        target_is_directory: bool = False,
        *,
        dir_fd: int | None = None,
    ) -> None:
        """os.symlink"""
        name = as_text(dst) if dir_fd is None else None
        with self.overlay.store.lock:
            spot = self._new(name, src, dst) if name is not None else None
            if spot is None:
                self._native("symlink", dst, name, target_is_directory, dir_fd=dir_fd, first=src)
                return
            where = self.overlay.place(spot.path)
            system.symlink(src, where, target_is_directory)
            self.overlay.put(spot.path, EntryKind.LINK, where)

    def link(self, src: Any, dst: Any, **options: Any) -> None:
        """os.link; a link to a user's file is a copy"""
        source, target = as_text(src), as_text(dst)
        if source is None or target is None or _relative_to_folder(options):
            system.link(src, dst, **options)
            return
        with self.overlay.store.lock:
            # Regardless of `follow_symlinks`: link(2) follows on macOS but not on Linux.
            follow = sys.platform == "darwin" and options.get("follow_symlinks", True)
            origin = self.overlay.locate(source, follow)
            kind = self.overlay.kind(origin)
            if kind is None:
                raise failure(errno.ENOENT, src, dst)
            spot = self._new(target, src, dst)
            if spot is None and self.overlay.left_alone(origin):
                system.link(origin.path if origin.moved else src, dst, **options)
                return
            if kind is EntryKind.FOLDER:
                raise failure(errno.EPERM, src, dst)
            contents = self.overlay.own(origin)
            where = self.overlay.place(spot.path) if spot is not None else target
            system.link(contents, where, **options)
            if spot is not None:
                self.overlay.put(spot.path, kind, where)

    def altering(self, call: str) -> Call:
        """A call that changes the contents or the attributes of the file at its first argument."""
        original = getattr(system, call)

        def alter(path: Any, *args: Any, **options: Any) -> Any:
            name = as_text(path)
            if name is None or _relative_to_folder(options):
                return original(path, *args, **options)
            follow = options.get("follow_symlinks", True) and call not in ("lchown", "lchmod")
            with self.overlay.store.lock:
                spot = self.overlay.locate(name, follow, write=True)
                if self.overlay.left_alone(spot):
                    return original(spot.path if spot.moved else path, *args, **options)
                if self.overlay.kind(spot) is None:
                    raise failure(errno.ENOENT, path)
                return original(self.overlay.own(spot), *args, **options)

        return alter

    def _native(
        self,
        call: str,
        path: Any,
        name: str | None,
        *args: Any,
        dir_fd: int | None,
        first: Any = None,
    ) -> None:
        """The system's own call, at the place that the path means in this view."""
        spot = self.overlay.locate(name, follow=False) if name is not None else None
        there = spot.path if spot is not None and spot.moved else path
        before = () if first is None else (first,)
        options = {} if dir_fd is None else {"dir_fd": dir_fd}
        getattr(system, call)(*before, there, *args, **options)
        if name is not None and call in ("symlink", "unlink"):
            self.overlay.forget_links()

    def write_folder(self, name: str) -> str | None:
        """Where a library may write the files of a folder, or None for the folder itself."""
        spot = self.overlay.locate(name, write=True)
        if self.overlay.left_alone(spot):
            return spot.path if spot.moved else None
        if self.overlay.kind(spot) is not EntryKind.FOLDER:
            return None
        return self.overlay.place(os.path.join(spot.path, "file"))[: -len("file")].rstrip("\\/")

    def adopt(self, name: str, where: str) -> None:
        """Add the files that a library has written at `where` to the folder `name`."""
        spot = self.overlay.locate(name, write=True)
        known_places = {entry.where for entry in self.overlay.index.within(spot.path)}
        for file in system.listdir(where):
            contents = os.path.join(where, file)
            if contents not in known_places and lstat(contents) is not None:
                self.overlay.put(os.path.join(spot.path, file), EntryKind.FILE, contents)


def _relative_to_folder(options: dict[str, Any]) -> bool:
    return any(options.get(key) is not None for key in ("dir_fd", "src_dir_fd", "dst_dir_fd"))
