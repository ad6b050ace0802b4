"""Replace Python's functions by the overlay's, wherever Python's are known by name."""

from __future__ import annotations

import builtins
import errno
import os
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

from flatout_agent.attach.replacing import Undo, in_reverse, replaced
from flatout_agent.overlay import views
from flatout_agent.overlay.changes import Changes
from flatout_agent.overlay.native import plain, raw_io, shown, system
from flatout_agent.overlay.opening import Opening, file_io
from flatout_agent.overlay.overlay import Overlay
from flatout_agent.overlay.renames import Renames

LOOKING = ("stat", "lstat", "access", "readlink", "statvfs", "pathconf", "getxattr", "listxattr")
ALTERING = (
    "truncate",
    "utime",
    "chmod",
    "lchmod",
    "chown",
    "lchown",
    "chflags",
    "lchflags",
    "setxattr",
    "removexattr",
)
KEEP_ORIGINALS = frozenset({"posix", "nt", "_io", "_frozen_importlib_external", "_pyio"})
"""Modules that hold the system's own functions; Python's import system keeps using those."""
CLASSES_IN = frozenset({"pathlib", "pathlib._local", "pathlib._abc", "glob", "tempfile", "shutil"})
"""Modules that keep file functions in classes or in defaults of arguments."""


class Patch:
    """Our function under the name of the one that it replaces.

    It is not a plain function, which would take `self` in a class body (as in pathlib).
    """

    def __init__(self, call: Callable[..., Any], original: Any, module: str) -> None:
        self._call = call
        self.__wrapped__ = original
        self.__name__ = self.__qualname__ = original.__name__
        self.__module__ = module
        self.__doc__ = original.__doc__

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._call(*args, **options)

    def __reduce__(self) -> str:
        return str(self.__qualname__)

    def __repr__(self) -> str:
        return f"<function {self.__module__}.{self.__qualname__}, in a trial>"


def _writing(call: Callable[..., Any], scratch: str) -> Callable[..., Any]:
    """Make errors name the program's path; our own fault becomes a failed write, never a
    real one.
    """

    def write(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except OSError as error:
            filename = error.filename
            if args and isinstance(filename, str) and plain(filename).startswith(scratch):
                error.filename = shown(args[0])
            elif args and isinstance(args[0], bytes) and isinstance(filename, str):
                error.filename = os.fsencode(filename)
            raise
        except (TypeError, ValueError):
            raise
        except Exception as error:
            path = args[0] if args else None
            raise OSError(errno.EIO, f"flatout could not redirect this: {error!r}", path) from error

    return write


def _replacements(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    """Functions of the module `os` by name."""
    changes, renames, listings = Changes(overlay), Renames(overlay), views.Listings(overlay)
    writes: dict[str, Callable[..., Any]] = {
        "open": Opening(overlay).os_open,
        "chdir": overlay.enter,
        "mkdir": changes.mkdir,
        "remove": changes.remove,
        "unlink": changes.remove,
        "rmdir": changes.rmdir,
        "symlink": changes.symlink,
        "link": changes.link,
        "rename": renames.call("rename"),
        "replace": renames.call("replace"),
        **{name: changes.altering(name) for name in ALTERING if hasattr(system, name)},
    }
    looks: dict[str, Callable[..., Any]] = {
        **{name: views.looking(overlay, name) for name in LOOKING if hasattr(system, name)},
        "listdir": listings.listdir,
        "scandir": listings.scandir,
        "getcwd": lambda: overlay.folder or system.getcwd(),
        "getcwdb": lambda: os.fsencode(overlay.folder or system.getcwd()),
    }
    if hasattr(system, "fchdir"):
        looks["fchdir"] = _leaving(overlay)
    guarded = {name: _writing(call, overlay.scratch) for name, call in writes.items()}
    return {**{name: call for name, call in guarded.items() if hasattr(os, name)}, **looks}


def _leaving(overlay: Overlay) -> Callable[[int], None]:
    def fchdir(fd: int) -> None:
        system.fchdir(fd)
        overlay.folder = None

    return fchdir


def put_on(overlay: Overlay) -> Undo:
    """Replace the functions; returns the undo."""
    opening = Opening(overlay)
    table: dict[int, tuple[Any, Any]] = {}
    for name, call in _replacements(overlay).items():
        original = getattr(system, name)
        table[id(original)] = (original, Patch(call, original, "os"))
    write = _writing(opening.open, overlay.scratch)
    table[id(raw_io.open)] = (raw_io.open, Patch(write, raw_io.open, "io"))
    code = raw_io.open_code
    table[id(code)] = (code, Patch(opening.open_code, code, "io"))
    table[id(raw_io.FileIO)] = (raw_io.FileIO, file_io(opening))
    table.update(_path_tests(table))
    table.update(_copies(opening))
    undo = [_sweep(table), _support(table), _no_folder_handles()]

    def take_off() -> None:
        for back in undo:
            back()

    return take_off


def _path_tests(table: dict[int, tuple[Any, Any]]) -> dict[int, tuple[Any, Any]]:
    tests = views.path_tests(table[id(system.stat)][1], table[id(system.lstat)][1])
    return {
        id(original): (original, Patch(test, original, os.path.__name__))
        for name, test in tests.items()
        if isinstance(original := getattr(os.path, name, None), BuiltinFunctionType)
    }


def _copies(opening: Opening) -> dict[int, tuple[Any, Any]]:
    """What `shutil` (since Python 3.12) and `pathlib` (since 3.14) copy files with on Windows."""
    try:
        import _winapi
    except ImportError:
        return {}
    original = getattr(_winapi, "CopyFile2", None)
    if original is None:
        return {}
    call = _writing(opening.copying(original), opening.overlay.scratch)
    return {id(original): (original, Patch(call, original, "_winapi"))}


def _sweep(table: dict[int, tuple[Any, Any]]) -> Undo:
    """Replace the originals in every module that has them; `from os import stat` creates many."""
    back: list[Undo] = []

    def swap(holder: Any, name: str, value: Any) -> None:
        # By type(), as some modules hold objects that warn at any attribute access.
        inner = value.__func__ if type(value) is staticmethod else value
        replacement = table.get(id(inner))
        if replacement is not None:
            patch = staticmethod(replacement[1]) if inner is not value else replacement[1]
            back.append(replaced(holder, name, patch))

    for name, module in list(sys.modules.items()):
        if name in KEEP_ORIGINALS or name.startswith("flatout_agent") or module is None:
            continue
        for key, value in list(getattr(module, "__dict__", {}).items()):
            swap(module, key, value)
            if name in CLASSES_IN and isinstance(value, type) and value.__module__ == name:
                for inner, held in list(vars(value).items()):
                    swap(value, inner, held)
                    _swap_defaults(held, table, back)
    swap(builtins, "open", builtins.open)
    return in_reverse(back)


def _swap_defaults(held: Any, table: dict[int, tuple[Any, Any]], back: list[Undo]) -> None:
    if isinstance(held, FunctionType) and any(
        id(value) in table for value in held.__defaults__ or ()
    ):
        defaults = held.__defaults__ or ()
        patched = (table[id(value)][1] if id(value) in table else value for value in defaults)
        back.append(replaced(held, "__defaults__", tuple(patched)))


def _support(table: dict[int, tuple[Any, Any]]) -> Undo:
    """Declare what the replacements support: not `dir_fd`, which they cannot redirect."""
    sets = (os.supports_follow_symlinks, os.supports_fd, os.supports_effective_ids)
    added: list[tuple[Any, Any]] = []
    for known in sets:
        for original, patch in table.values():
            if original in known:
                known.add(patch)
                added.append((known, patch))

    def undo() -> None:
        for known, patch in added:
            known.discard(patch)

    return undo


def _no_folder_handles() -> Undo:
    """`shutil.rmtree` by paths instead of by folder handles, if shutil is there already.

    If imported later, it detects by itself that `os.open` does not support `dir_fd`.
    """
    shutil = sys.modules.get("shutil")
    if not hasattr(shutil, "_use_fd_functions"):
        return lambda: None
    return replaced(shutil, "_use_fd_functions", False)
