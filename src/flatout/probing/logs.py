"""Logs in users' forms: files (also compressed or UTF-16), folders of ranks, a pipe."""

from __future__ import annotations

import codecs
import gzip
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from flatout.nouns.errors import UserError

BLOCK = 1 << 20
SUFFIXES = {".log", ".txt", ".out", ".err", ".stderr", ".stdout", ".gz", ""}
MEANT_AS_PATH = re.compile(r"\S+[/\\]\S*|\S+\.(log|txt|out|err|gz)", re.IGNORECASE)
"""Words that mean a path even if there is no such file."""
FILES = 10_000
"""The most files read from one folder."""
_NUMBERED = re.compile(r"\.[eo]?\d+")
"""A batch system's suffix: job.o123, train.err.4."""
_BINARY_SAMPLE = 4096
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def contents(words: Sequence[str]) -> Iterator[tuple[str | None, Iterator[bytes]]]:
    """Name and content of each file and of each log in each folder, else the words as text.

    Raises UserError if a path leads to no log.
    """
    paths = [_path(word) for word in words]
    if not all(paths):
        yield None, iter([" ".join(words).encode("utf-8", "replace")])
        return
    for path in filter(None, paths):
        logs = files(path) if path.is_dir() else [path]
        if not logs:
            raise UserError(f"{path} holds no logs", "give the files themselves")
        yield from ((str(file), blocks(file)) for file in logs)


def _path(word: str) -> Path | None:
    path = Path(word)
    try:
        if path.exists():
            return path
    except (OSError, ValueError):  # too long for a name, or holds a NUL: a text
        return None
    if MEANT_AS_PATH.fullmatch(word):
        raise UserError(f"there is no file {word}", "give a log, a folder, or the text itself")
    return None


def blocks(path: Path) -> Iterator[bytes]:
    """The file's text in UTF-8, block by block. Raises OSError."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not is_gzip:
            yield from of_stream(file)
            return
        with gzip.open(file) as content, suppress(EOFError):  # truncated: read what is there
            yield from of_stream(cast("BinaryIO", content))


def of_stream(stream: BinaryIO) -> Iterator[bytes]:
    """The same for an open stream; a pipe is read as it comes."""
    first = _read(stream, BLOCK)
    if first[:2] in _UTF16:  # PowerShell redirects in UTF-16
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        while first:
            yield decoder.decode(first).encode()
            first = _read(stream, BLOCK)
        return
    while first:
        yield first
        first = _read(stream, BLOCK)


def files(folder: Path) -> list[Path]:
    """The logs in a folder and those below it, by name; files of other kinds are left out."""
    paths: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        paths += (Path(root) / name for name in sorted(names) if _may_be_log(Path(root) / name))
        if len(paths) >= FILES:
            break
    return paths[:FILES]


def _may_be_log(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES and not _NUMBERED.fullmatch(suffix):
        return False
    try:
        with path.open("rb") as file:
            sample = file.read(_BINARY_SAMPLE)
    except OSError:
        return False
    return (bool(sample) and (b"\0" not in sample or sample[:2] in _UTF16)) or path.suffix == ".gz"


def _read(stream: BinaryIO, size: int) -> bytes:
    """Up to `size` available bytes, at least one; empty at the end."""
    read1 = getattr(stream, "read1", None)
    return bytes(read1(size) if read1 is not None else stream.read(size))
