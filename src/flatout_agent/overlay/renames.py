"""`os.rename` and `os.replace` in the overlay.

Nothing is copied: the entries get other paths, and their contents stay where they are. Contents
move only between protected and unprotected folders, as with `shutil.move`.
"""
# ruff: noqa: PTH112, PTH118

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from flatout_agent.overlay.changes import as_text
from flatout_agent.overlay.index import EntryKind, Layer, fold
from flatout_agent.overlay.native import copy_file, failure, lstat, read_link, system
from flatout_agent.overlay.overlay import Overlay, Spot


class Renames:
    """The two calls; on Windows they differ if the target exists."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay

    def call(self, name: str) -> Callable[..., None]:
        """os.rename or os.replace"""
        original = getattr(system, name)

        def move(
            src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            source, target = as_text(src), as_text(dst)
            if source is None or target is None or (src_dir_fd, dst_dir_fd) != (None, None):
                original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                return
            with self.overlay.store.lock:
                old = self.overlay.locate(source, follow=False)
                new = self.overlay.locate(target, follow=False)
                if self.overlay.left_alone(old) and self.overlay.left_alone(new):
                    original(old.path if old.moved else src, new.path if new.moved else dst)
                    self.overlay.forget_links()
                elif self._allowed(old, new, (src, dst), name == "replace"):
                    self._move(old, new)

        return move

    def _allowed(self, old: Spot, new: Spot, names: tuple[Any, Any], replace: bool) -> bool:
        """Raise what the system would raise; returns False if both are the same, so nothing is to
        be done.
        """
        view = self.overlay
        source, target = view.kind(old), view.kind(new)
        if source is None:
            raise failure(errno.ENOENT, *names)
        if fold(old.path) == fold(new.path):
            return old.path != new.path
        view.need_parent(old, *names)
        view.need_parent(new, *names)
        if fold(new.path).startswith(fold(old.path) + os.sep):
            raise failure(errno.EINVAL, *names)
        if fold(old.path).startswith(fold(new.path) + os.sep):
            raise failure(errno.ENOTEMPTY, *names)
        if target is None:
            return True
        if sys.platform == "win32" and (not replace or EntryKind.FOLDER in (source, target)):
            raise failure(errno.EACCES if replace else errno.EEXIST, *names)
        if target is EntryKind.FOLDER and source is not EntryKind.FOLDER:
            raise failure(errno.EISDIR, *names)
        if source is EntryKind.FOLDER and target is not EntryKind.FOLDER:
            raise failure(errno.ENOTDIR, *names)
        if target is EntryKind.FOLDER and next(view.names(new.path), None) is not None:
            raise failure(errno.ENOTEMPTY, *names)
        return sys.platform == "win32" or not _same_file(old, new)

    def _move(self, old: Spot, new: Spot) -> None:
        view = self.overlay
        if view.left_alone(new):
            self._carry_out(old, new.path)
            return
        spots = list(self._tree(old))
        view.discard(new.entry)
        for spot, kind in spots:
            path = new.path + spot.path[len(old.path) :]
            if view.left_alone(old):
                self._carry_in(spot, kind, path)
            elif spot.entry is not None:
                view.put(path, kind, spot.entry.where, spot.entry.layer)
            else:
                view.put(path, kind, spot.path, Layer.REAL)
        for spot, kind in reversed(spots):
            if view.left_alone(old):
                getattr(system, "rmdir" if kind is EntryKind.FOLDER else "unlink")(spot.path)
            else:
                view.hide(spot.path)

    def _tree(self, spot: Spot) -> Iterator[tuple[Spot, EntryKind]]:
        """The entry at a path and, for a folder, everything below it."""
        view = self.overlay
        kind = view.kind(spot)
        if kind is None:
            return
        yield spot, kind
        if kind is EntryKind.FOLDER:
            for name in list(view.names(spot.path)):
                path = os.path.join(spot.path, name)
                yield from self._tree(Spot(path, view.index.entries.get(fold(path)), False))

    def _carry_in(self, spot: Spot, kind: EntryKind, path: str) -> None:
        """Move contents from an unprotected folder into scratch."""
        where = self.overlay.place(path)
        _copy(spot.path, kind, where)
        self.overlay.put(path, kind, where)

    def _carry_out(self, old: Spot, target: str) -> None:
        """Move contents out of the overlay into an unprotected folder."""
        spots = list(self._tree(old))
        for spot, kind in spots:
            source = spot.entry.where if spot.entry is not None else spot.path
            path = target + spot.path[len(old.path) :]
            if kind is EntryKind.FILE and path == target:
                copy_file(source, path + ".flatout-part")
                system.replace(path + ".flatout-part", path)
            else:
                _copy(source, kind, path)
        for spot, _ in reversed(spots):
            self.overlay.discard(spot.entry)
            self.overlay.hide(spot.path)


def _same_file(old: Spot, new: Spot) -> bool:
    """Whether these are two names of one file, which the system leaves as they are."""
    places = [spot.entry.where if spot.entry is not None else spot.path for spot in (old, new)]
    first, second = (lstat(place) for place in places)
    return first is not None and second is not None and os.path.samestat(first, second)


def _copy(source: str, kind: EntryKind, target: str) -> None:
    if kind is EntryKind.FOLDER:
        if not os.path.isdir(target):
            system.mkdir(target)
    elif kind is EntryKind.LINK:
        system.symlink(read_link(source), target)
    else:
        copy_file(source, target)
