"""Decides which paths belong to the user and which may be written directly.

Protected is every path except

- flatout's own folders: the scratch folder, any `.flatout` folder, and those named by the caller;
- devices and pipes;
- caches that programs fill for speed and that are valid for any later run: compile caches
  (TorchInductor, Triton, extensions; compilers read them and they are loaded as shared libraries,
  which no overlay in Python reaches), downloaded models and data sets (Hugging Face, torch hub),
  `__pycache__`, fonts of matplotlib. They are found by the environment variables in
  `CACHE_VARIABLES`, else at the usual places in the home folder (`~/.cache` as a whole);
- the system's temporary folder, except where the user works in a folder below it.
"""
# ruff: noqa: PTH111, PTH118, PTH206

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from flatout_agent.overlay.index import fold

CACHE_VARIABLES = (
    "CUDA_CACHE_PATH",
    "HF_DATASETS_CACHE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_MODULES_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "PYTHONPYCACHEPREFIX",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
    "TRANSFORMERS_CACHE",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "XDG_CACHE_HOME",
)
HOME_CACHES = (
    ".cache",
    ".config/matplotlib",
    ".matplotlib",
    ".nv",
    ".triton",
    "AppData/Local/torch_extensions",
    "Library/Caches",
)
OWN_NAMES = frozenset({".flatout", "__pycache__"})
WINDOWS_DEVICES = frozenset({"nul", "con", "prn", "aux", "conin$", "conout$"})
TEMP_VARIABLES = ("TMPDIR", "TEMP", "TMP")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


class Territory:
    """Answers whether a path is protected. `canonical` resolves a path as the overlay does."""

    def __init__(self, protect: str, own: Iterable[str], canonical: Callable[[str], str]) -> None:
        self.canonical = canonical
        self.own = tuple(fold(canonical(folder)) for folder in own if folder)
        self.protect = fold(canonical(protect)) if protect else None
        self.temp = tuple({fold(canonical(folder)) for folder in _temp_folders()})
        home = os.path.expanduser("~")
        self.home_caches = tuple(
            fold(canonical(os.path.join(home, *name.split("/")))) for name in HOME_CACHES
        )
        self._caches: tuple[tuple[str | None, ...], tuple[str, ...]] | None = None

    def protected(self, path: str) -> bool:
        """Whether writing to this canonical path must be redirected."""
        key = fold(path)
        if any(_is_below(key, folder) for folder in self.own) or _is_device(key):
            return False
        if not OWN_NAMES.isdisjoint(key.split(os.sep)):
            return False
        if any(_is_below(key, folder) for folder in self._cache_folders()):
            return False
        for folder in self.temp:
            if _is_below(key, folder):
                return self._works_below(folder, key)
        return True

    def _works_below(self, temp: str, key: str) -> bool:
        """Whether the user works in a folder below the temporary one, and `key` is in
        that folder.
        """
        if self.protect is None or self.protect == temp or not _is_below(self.protect, temp):
            return False
        return _is_below(key, self.protect)

    def _cache_folders(self) -> tuple[str, ...]:
        """Read again for each write, as programs set these variables themselves."""
        values = tuple(os.environ.get(name) for name in CACHE_VARIABLES)
        if self._caches is None or self._caches[0] != values:
            named = [fold(self.canonical(value)) for value in values if value]
            folders = [
                folder
                for folder in (*named, *self.home_caches)
                if self.protect is None or not _is_below(self.protect, folder)
            ]
            self._caches = (values, tuple(folders))
        return self._caches[1]


def _temp_folders() -> list[str]:
    named = [os.environ.get(name) for name in TEMP_VARIABLES]
    usual = [] if sys.platform == "win32" else ["/tmp", "/var/tmp", "/usr/tmp", "/dev/shm"]
    return [folder for folder in [*named, *usual] if folder]


def _is_device(key: str) -> bool:
    if sys.platform == "win32":
        name = key.rsplit(os.sep, 1)[-1].split(".")[0]
        return key.startswith("\\\\.\\") or name in WINDOWS_DEVICES
    return any(_is_below(key, folder) for folder in ("/dev", "/proc", "/sys"))
