"""The kernel's small files (/proc, /sys); those that cannot be read give None."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOST_BYTES = 2**20


def text(path: Path, most_bytes: int = MOST_BYTES) -> str | None:
    """The file's content without surrounding whitespace, or None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most_bytes).decode(errors="replace").strip("\0 \t\r\n")
    except (OSError, ValueError):
        return None


def number(path: Path) -> int | None:
    """The whole number that the file consists of."""
    return whole(text(path))


def whole(digits: str | None) -> int | None:
    """A whole number in decimal digits; None for anything else."""
    if digits is None or not re.fullmatch(r"-?[0-9]{1,20}", digits):
        return None
    return int(digits)


def entries(folder: Path) -> list[Path] | None:
    """The folder's entries by name, or None if it does not exist or may not be listed."""
    try:
        return sorted(folder.iterdir())
    except (OSError, ValueError):
        return None


def folders(variable: str | None) -> list[str]:
    """The folders that a variable such as PATH lists; an empty name would be the current one."""
    return [folder for folder in (variable or "").split(os.pathsep) if folder]


def is_file(path: Path) -> bool:
    """Whether it is a file; False if that cannot be found out."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def link_name(path: Path) -> str | None:
    """The last part of a symbolic link's target."""
    try:
        return path.readlink().name or None
    except (OSError, ValueError):
        return None


def exists(path: Path) -> bool | None:
    """Whether it exists, or None if a folder on the path may not be searched."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return None
    return True
