"""A view of the file system with the program's changes in it, and the user's files unchanged.

A path is looked up in this order: written after the first step, written before it, prepared by the
baseline, the user's own files. The index holds the first three, so that is one dictionary lookup;
if it holds nothing for a path, the call goes to the system as the program made it.

Paths are first normalised: absolute, with links in the folders followed. `..` is resolved
textually, and links that another program makes meanwhile are not noticed.
"""
# ruff: noqa: PTH117, PTH118, PTH119, PTH120

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from flatout_agent.overlay import given
from flatout_agent.overlay.index import EntryKind, Layer, OverlayEntry, Store, fold
from flatout_agent.overlay.native import (
    copy_file,
    failure,
    is_link,
    lengthened,
    lstat,
    make_folders,
    plain,
    read_link,
    system,
)
from flatout_agent.overlay.territory import Territory

MAX_LINKS = 40
MAX_CANONICAL = 50_000
MAX_PLACES = 1_000_000


class Spot(NamedTuple):
    """A normalised path, and the overlay's entry for it."""

    path: str
    entry: OverlayEntry | None
    moved: bool
    """Whether the system would not find it under the name that the program used."""


class Overlay:
    """Finds paths, and makes the place in scratch where a changed file is kept."""

    def __init__(
        self,
        scratch: str,
        protect: str,
        prepared: str | None,
        own: tuple[str, ...],
        report: Callable[[str], None],
    ) -> None:
        self._canonical: dict[str, str] = {}
        self._through_links: set[str] = set()
        self.folder: str | None = None
        """The current folder, if only the overlay has it."""
        self.scratch = os.path.realpath(scratch)
        self.store = Store(self.scratch)
        self.index = self.store.index
        for entry in given.load(os.path.realpath(prepared)) if prepared else ():
            self.index.put(entry)
        self.territory = Territory(protect, (self.scratch, *own), self.canonical_path)
        self._next_place: dict[str, int] = {}
        self._report = report
        self._reported: set[str] = set()
        self.refresh()
        self.folder = self._virtual(system.getcwd())

    # Paths ----------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether nothing has been changed so far, so every path is the system's: the fast path."""
        first, second = self.store.pair
        if first.stale() or second.stale():
            self.refresh()
        return not self.index.entries and self.folder is None

    def refresh(self) -> None:
        """Apply the changes of the program's other processes."""
        if self.store.refresh():
            self.forget_links()

    def forget_links(self) -> None:
        """A link was made or removed: normalise each path again."""
        self._canonical.clear()
        self._through_links.clear()

    def absolute(self, path: str) -> str:
        """An absolute path without `.` and `..`."""
        if self.folder is not None:
            path = os.path.join(self.folder, path)
        elif sys.platform == "win32":
            path = system._getfullpathname(path)
        elif not path.startswith("/"):
            path = f"{system.getcwd()}/{path}"
        path = os.path.normpath(path)
        if path.startswith("//"):
            return path[1:]
        return plain(path)

    def canonical_path(self, path: str) -> str:
        """The normalised form of a path, with links followed."""
        return self._canonical_folder(self.absolute(path))

    def _canonical_folder(self, folder: str) -> str:
        cached = self._canonical.get(folder)
        if cached is not None:
            return cached
        parent, name = os.path.split(folder)
        if not name or parent == folder:
            return folder
        base = self._canonical_folder(parent)
        canonical = os.path.join(base, name)
        entry = self.index.entries.get(fold(canonical))
        target = self._link_target(canonical, entry)
        if target is not None:
            canonical = self._canonical_folder(os.path.normpath(os.path.join(base, target)))
        if (entry is not None and entry.kind is EntryKind.LINK) or parent in self._through_links:
            self._through_links.add(folder)
        if len(self._canonical) > MAX_CANONICAL:
            self._canonical.clear()
        self._canonical[folder] = canonical
        return canonical

    def _link_target(self, path: str, entry: OverlayEntry | None) -> str | None:
        if entry is not None:
            return read_link(entry.where) if entry.kind is EntryKind.LINK else None
        status = lstat(path)
        return read_link(path) if status is not None and is_link(status) else None

    def locate(self, name: str, follow: bool = True, write: bool = False) -> Spot:
        """Find a path. `follow` says whether to follow a link at its end.

        For reading, a user's link is examined only in folders where something changed.
        """
        full = self.absolute(name)
        moved = self.folder is not None and not os.path.isabs(name)
        for _ in range(MAX_LINKS):
            folder, last = os.path.split(full)
            base = self._canonical_folder(folder)
            moved = moved or (bool(self._through_links) and folder in self._through_links)
            path = os.path.join(base, last) if last else base
            entry = self.index.entries.get(fold(path))
            if not follow:
                return Spot(path, entry, moved)
            touched = write or entry is not None or fold(base) in self.index.children
            target = self._link_target(path, entry) if touched else None
            if target is None:
                return Spot(path, entry, moved)
            moved = moved or entry is not None
            self.index.children.setdefault(fold(base), {})
            full = os.path.normpath(os.path.join(base, target))
        raise failure(errno.ELOOP, name)

    def readable(self, name: str, follow: bool = True) -> str | None:
        """Where to read this path, or None for the path that the program gives."""
        spot = self.locate(name, follow)
        entry = spot.entry
        if entry is not None and entry.kind is EntryKind.GONE and self._came_back(entry):
            entry = None
        if entry is None:
            return spot.path if spot.moved else None
        if entry.kind is EntryKind.GONE:
            raise failure(errno.ENOENT, name)
        return entry.where

    # State ----------------------------------------------------------------------------------

    def kind(self, spot: Spot) -> EntryKind | None:
        """The kind of entry at a path in this view, or None if there is nothing. Irregular entries
        count as files.
        """
        if spot.entry is not None and not self._came_back(spot.entry):
            return None if spot.entry.kind is EntryKind.GONE else spot.entry.kind
        status = lstat(spot.path)
        if status is None:
            return None
        if is_link(status):
            return EntryKind.LINK
        return EntryKind.FOLDER if stat.S_ISDIR(status.st_mode) else EntryKind.FILE

    def _came_back(self, entry: OverlayEntry) -> bool:
        """Whether a library that no patch reaches has recreated the removed file."""
        return entry.kind is EntryKind.GONE and _fingerprint(entry.path) not in ("", entry.where)

    def left_alone(self, spot: Spot) -> bool:
        """Whether writing here goes to the system unchanged."""
        return spot.entry is None and not self.territory.protected(spot.path)

    def names(self, folder: str) -> Iterator[str]:
        """The names in a folder (given normalised) in this view."""
        changed = self.index.children.get(fold(folder), {})
        try:
            real = system.listdir(folder)
        except OSError:
            real = []
        for name in real:
            if fold(name) not in changed:
                yield name
        for entry in self.index.within(folder):
            if entry.kind is not EntryKind.GONE or self._came_back(entry):
                yield os.path.basename(entry.path)

    def only_given(self, spot: Spot) -> bool:
        """Whether only the baseline created this; creating it again is no error for a fresh
        program.
        """
        entry = spot.entry
        return entry is not None and entry.layer is Layer.GIVEN and lstat(spot.path) is None

    def need_parent(self, spot: Spot, *names: Any) -> None:
        """Raise the system's error if something cannot be created because its folder is missing."""
        parent = os.path.dirname(spot.path)
        holder = Spot(parent, self.index.entries.get(fold(parent)), False)
        kind = self.kind(holder)
        if kind is None:
            raise failure(errno.ENOENT, *names)
        if kind is not EntryKind.FOLDER:
            raise failure(errno.ENOTDIR, *names)
        source = holder.entry.where if holder.entry is not None else parent
        if not system.access(source, os.W_OK):
            raise failure(errno.EACCES, *names)

    # Places in scratch ----------------------------------------------------------------------

    def place(self, path: str) -> str:
        """A free place for `path` in the current layer; the folders above it are created."""
        root = self.store.roots[self.store.current]
        for number in range(self._next_place.get(path, 0), MAX_PLACES):
            where = lengthened(os.path.join(root, f"files{number or ''}", _as_relative(path)))
            try:
                make_folders(os.path.dirname(where))
            except (FileExistsError, NotADirectoryError):
                continue  # a file is, or was, at the place of a folder of this path
            if lstat(where) is None:
                if number:  # a name that is reused and renamed each time
                    self._next_place[path] = number + 1
                return where
        raise failure(errno.EEXIST, path)

    def owned(self, entry: OverlayEntry | None) -> bool:
        """Whether its contents may be changed in place."""
        return entry is not None and entry.layer is self.store.current

    def own(self, spot: Spot) -> str:
        """Where the contents may be changed, copied to the current layer if necessary."""
        if spot.entry is not None and self.owned(spot.entry):
            return spot.entry.where
        source = spot.entry.where if spot.entry is not None else spot.path
        kind = self.kind(spot) or EntryKind.FILE
        where = self.place(spot.path)
        if kind is EntryKind.FOLDER:
            status = system.stat(source)
            system.mkdir(where, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
            system.utime(where, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif kind is EntryKind.LINK:
            system.symlink(read_link(source), where)
        else:
            copy_file(source, where)
        self.put(spot.path, kind, where)
        return where

    def put(self, path: str, kind: EntryKind, where: str, layer: Layer | None = None) -> None:
        """Record what is at a path now."""
        self.store.put(
            OverlayEntry(path, kind, where, self.store.current if layer is None else layer)
        )
        if kind is EntryKind.LINK:
            self.forget_links()
        if kind is not EntryKind.FOLDER:
            self.report(path)

    def hide(self, path: str) -> None:
        """Record that nothing is at this path any more."""
        entry = self.index.entries.get(fold(path))
        print_of = _fingerprint(path)
        kind = EntryKind.GONE if print_of else EntryKind.FORGOTTEN
        self.store.put(OverlayEntry(path, kind, print_of, Layer.REAL))
        if entry is None or entry.kind is EntryKind.LINK:
            self.forget_links()
        if print_of:
            self.report(path)

    def discard(self, entry: OverlayEntry | None) -> None:
        """Remove contents that nothing refers to any more, if they are ours to remove."""
        if entry is None or not self.owned(entry):
            return
        if entry.kind is EntryKind.FOLDER:
            # It may still hold contents that moved here from elsewhere, or out of here.
            try:
                system.rmdir(entry.where)
            except OSError:
                return
        else:
            system.unlink(entry.where)

    def report(self, path: str) -> None:
        """Report it to the host, once per path."""
        if path not in self._reported:
            self._reported.add(path)
            self._report(path)

    # Current folder -------------------------------------------------------------------------

    def enter(self, path: Any) -> None:
        """`os.chdir`, also into a folder that only the overlay has."""
        if isinstance(path, int):
            system.chdir(path)
            self.folder = None
            return
        text = os.fsdecode(path)
        where = self.readable(text)
        spot = self.locate(text)
        try:
            system.chdir(path if where is None else where)
        except OSError as error:
            error.filename = path  # under the program's name for it
            raise
        self.folder = spot.path if spot.entry is not None else None

    def _virtual(self, real: str) -> str | None:
        """The folder that a place in scratch represents (the parent process had changed to it)."""
        for entry in self.index.entries.values():
            if entry.kind is EntryKind.FOLDER and fold(entry.where) == fold(real):
                return entry.path
        return None


def _fingerprint(path: str) -> str:
    status = lstat(path)
    if status is None:
        return ""
    if stat.S_ISDIR(status.st_mode):
        return f"folder {status.st_ino}"
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def _as_relative(path: str) -> str:
    """The drive or the server as the outermost folder, without a leading separator."""
    drive, rest = os.path.splitdrive(path)
    return os.path.join(drive.strip("\\/").rstrip(":"), rest.lstrip("\\/"))
