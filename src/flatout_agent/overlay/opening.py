"""Opening files: `open`, `os.open`, `io.FileIO`, and files that a library opens by their path.

Reading costs one dictionary lookup. Writing opens the file's place in scratch, after copying the
user's contents there unless they are to be overwritten. The file object still has the name that the
program gave.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from flatout_agent.overlay.changes import as_text
from flatout_agent.overlay.index import EntryKind, OverlayEntry
from flatout_agent.overlay.native import failure, lstat, raw_io, system
from flatout_agent.overlay.overlay import Overlay, Spot
from flatout_agent.overlay.views import look_up, renaming_errors

READING = frozenset({"r", "rb", "rt", "br", "tr"})
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
UNNAMED = getattr(os, "O_TMPFILE", 0)
FAIL_IF_EXISTS = 1
"""A flag of Windows' CopyFile2."""


class Intent(NamedTuple):
    """The effect that opening a file may have on it."""

    create: bool = False
    truncate: bool = False
    exclusive: bool = False


class WriteTarget(NamedTuple):
    """Where to write; `path` is entered in the index once that place has been opened."""

    where: str
    path: str | None


class Opening:
    """Ways to open a file in the overlay."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay

    def target(self, name: str, path: Any, intent: Intent) -> WriteTarget | None:
        """Where the program is to write this file, or None for the path that it gives."""
        view = self.overlay
        spot = view.locate(name, follow=not intent.exclusive, write=True)
        if view.left_alone(spot):
            return WriteTarget(spot.path, None) if spot.moved else None
        kind = view.kind(spot)
        if kind is not None and intent.exclusive:
            if not view.only_given(spot):
                raise failure(errno.EEXIST, path)
            kind = None
        if kind is None:
            if not intent.create:
                raise failure(errno.ENOENT, path)
            view.need_parent(spot, path)
            return WriteTarget(view.place(spot.path), spot.path)
        if kind is EntryKind.FOLDER:
            raise failure(errno.EACCES if sys.platform == "win32" else errno.EISDIR, path)
        return self._existing(spot, path, intent)

    def _existing(self, spot: Spot, path: Any, intent: Intent) -> WriteTarget | None:
        view = self.overlay
        if spot.entry is not None and view.owned(spot.entry):
            return WriteTarget(spot.entry.where, None)
        source = spot.entry.where if spot.entry is not None else spot.path
        status = system.stat(source)
        if not stat.S_ISREG(status.st_mode):
            return None  # a pipe or a device
        if not system.access(source, os.W_OK):
            raise failure(errno.EACCES, path)
        if not intent.truncate:
            return WriteTarget(view.own(spot), None)
        where = view.place(spot.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        system.close(system.open(where, flags, stat.S_IMODE(status.st_mode)))
        return WriteTarget(where, spot.path)

    def opened(self, target: WriteTarget) -> None:
        """The file exists: enter it in the index."""
        if target.path is not None:
            old = self.overlay.index.entries.get(os.path.normcase(target.path))
            self.overlay.put(target.path, EntryKind.FILE, target.where)
            if old is not None and old.kind is EntryKind.LINK:
                self.overlay.forget_links()

    def read_place(self, name: str, path: Any) -> str | None:
        """Where to read a file; records that a prepared one was read."""
        where: str | None = look_up(self.overlay, name, path)
        if where is not None:
            with contextlib.suppress(OSError):
                self._mark(name)
        return where

    def _mark(self, name: str) -> None:
        entry: OverlayEntry | None = self.overlay.locate(name).entry
        if entry is not None:
            self.overlay.store.mark_read(entry)

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[str, int], int] | None = None,
    ) -> Any:
        """The built-in open"""
        rest = (buffering, encoding, errors, newline, closefd)
        reading = mode in READING
        name = None if opener is not None or (reading and self.overlay.idle()) else as_text(file)
        if name is None or not isinstance(mode, str):
            return raw_io.open(file, mode, *rest, opener)
        if reading:
            where = self.read_place(name, file)
            if where is None:
                return raw_io.open(file, mode, *rest)
            return renaming_errors(file, where, raw_io.open, file, mode, *rest, _opener(where))
        with self.overlay.store.lock:
            target = self.target(name, file, _intent(mode))
            if target is None:
                return raw_io.open(file, mode, *rest)
            where = target.where
            stream = renaming_errors(file, where, raw_io.open, file, mode, *rest, _opener(where))
            self.opened(target)
            return stream

    def open_code(self, path: Any) -> Any:
        """io.open_code"""
        name = as_text(path)
        where = None if name is None or self.overlay.idle() else self.read_place(name, path)
        return raw_io.open_code(path if where is None else where)

    def os_open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        """os.open"""
        name = as_text(path) if dir_fd is None else None
        if name is None:
            return int(system.open(path, flags, mode, dir_fd=dir_fd))
        unnamed = bool(UNNAMED) and flags & UNNAMED == UNNAMED
        if unnamed or not flags & WRITE_FLAGS:
            where = None if self.overlay.idle() else self.read_place(name, path)
            there = path if where is None else where
            return int(renaming_errors(path, there, system.open, there, flags, mode))
        exclusive = bool(flags & os.O_EXCL and flags & os.O_CREAT)
        intent = Intent(bool(flags & os.O_CREAT), bool(flags & os.O_TRUNC), exclusive)
        with self.overlay.store.lock:
            target = self.target(name, path, intent)
            if target is None:
                return int(system.open(path, flags, mode))
            handle = renaming_errors(path, target.where, system.open, target.where, flags, mode)
            self.opened(target)
            return int(handle)

    @contextlib.contextmanager
    def lent(self, path: Any, intent: Intent | None) -> Iterator[Any]:
        """The path to pass to a library that opens files by itself. Without an intent it only
        reads.
        """
        name = as_text(path)
        if name is None:
            yield path
        elif intent is None:
            where = None if self.overlay.idle() else self.read_place(name, path)
            yield path if where is None else where
        else:
            with self.overlay.store.lock:
                target = self.target(name, path, intent)
                if target is not None and target.path is not None and not intent.truncate:
                    self.opened(target)
            yield path if target is None else target.where
            if target is not None and lstat(target.where) is not None:
                self.opened(target)

    def copying(self, original: Callable[..., Any]) -> Callable[..., None]:
        """`_winapi.CopyFile2`, by which `shutil` and `pathlib` copy on Windows."""

        def copy_file(
            existing_file_name: str, new_file_name: str, flags: int, progress_routine: Any = None
        ) -> None:
            intent = Intent(create=True, truncate=True, exclusive=bool(flags & FAIL_IF_EXISTS))
            with (
                self.lent(existing_file_name, None) as source,
                self.lent(new_file_name, intent) as target,
            ):
                original(source, target, flags, progress_routine)

        return copy_file


def _intent(mode: str) -> Intent:
    return Intent(
        create=any(letter in mode for letter in "wax"),
        truncate="w" in mode,
        exclusive="x" in mode,
    )


def _opener(where: str) -> Callable[[str, int], int]:
    """Open that place; the file object keeps the name that the program gave."""

    def opener(_: str, flags: int) -> int:
        handle: int = system.open(where, flags, 0o666)
        return handle

    return opener


class _AnyFileIO(type(io.FileIO)):  # type: ignore[misc]
    """A file opened by the system is a FileIO, too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, raw_io.FileIO)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, raw_io.FileIO)


def file_io(opening: Opening) -> type[io.FileIO]:
    """`io.FileIO` that opens in the overlay."""

    class FileIO(raw_io.FileIO, metaclass=_AnyFileIO):  # type: ignore[misc]
        def __init__(
            self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
        ) -> None:
            name = as_text(file) if opener is None else None
            if name is None:
                super().__init__(file, mode, closefd, opener)
                return
            if mode in READING:
                where = None if opening.overlay.idle() else opening.read_place(name, file)
                target = None if where is None else WriteTarget(where, None)
            else:
                target = opening.target(name, file, _intent(mode))
            if target is None:
                super().__init__(file, mode, closefd)
                return
            super().__init__(file, mode, closefd, _opener(target.where))
            opening.opened(target)

    FileIO.__module__ = "io"
    FileIO.__qualname__ = "FileIO"
    return FileIO
