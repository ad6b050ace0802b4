"""Checkpoints on the disk: written completely or not at all.

A checkpoint is a folder `step-00000500`. It is written under a temporary name, every file and
folder is flushed to the disk, and then renamed: a crash at any moment leaves the older checkpoints
as they were and at most a temporary folder, which the next writer removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

RANDOM_STATES = "random-states"
"""File name of the random states, which every checkpoint holds; no tracked object can have it."""

_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_TEMPORARY = re.compile(r"\.step-\d{8,}\.[0-9a-f]{8}\.tmp")


class SavedCheckpoint(NamedTuple):
    """A finished checkpoint: its step, its number among those of that step (from 1), its path."""

    step: int
    time: int
    path: Path


class Folder:
    """The folder that holds the checkpoints of one training."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def entries(self) -> list[SavedCheckpoint]:
        """The finished checkpoints, intact or broken, the newest first."""
        try:
            paths = [Path(entry.path) for entry in os.scandir(self.path) if entry.is_dir()]
        except FileNotFoundError:
            return []
        matches = [(path, _NAME.fullmatch(path.name)) for path in paths]
        entries = [
            SavedCheckpoint(int(name[1]), int(name[2] or 1), path) for path, name in matches if name
        ]
        return sorted(entries, reverse=True)

    def begin(self, step: int) -> Path:
        """A new temporary folder for this step's checkpoint; removes those of dead writers."""
        self.path.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(self.path):
            if _TEMPORARY.fullmatch(entry.name):
                discard(Path(entry.path))
        temporary = self._temporary(step)
        temporary.mkdir()
        return temporary

    def finish(self, temporary: Path, step: int) -> SavedCheckpoint:
        """Flush the folders to the disk, and give the checkpoint its final name."""
        for folder in [path for path in temporary.rglob("*") if path.is_dir()]:
            _flush_folder(folder)
        _flush_folder(temporary)
        times = max((entry.time for entry in self.entries() if entry.step == step), default=0) + 1
        name = f"step-{step:08d}" + (f"-{times}" if times > 1 else "")
        temporary.rename(self.path / name)
        _flush_folder(self.path)
        return SavedCheckpoint(step, times, self.path / name)

    def prune(self, keep: int, newest: SavedCheckpoint) -> None:
        """Remove the checkpoints before `newest`, except those of the last `keep` steps.

        Folders that flatout did not write stay.
        """
        kept_steps: set[int] = set()
        for entry in self.entries():
            if entry > newest:
                continue
            if len(kept_steps) < keep and entry.step not in kept_steps:
                kept_steps.add(entry.step)
                continue
            if not (entry.path / f"{RANDOM_STATES}.pt").exists():
                continue  # not written by flatout
            # Renamed first: a crash must not leave half of a checkpoint under its name.
            temporary = self._temporary(entry.step)
            entry.path.rename(temporary)
            discard(temporary)

    def _temporary(self, step: int) -> Path:
        return self.path / f".step-{step:08d}.{secrets.token_hex(4)}.tmp"


def discard(temporary: Path) -> None:
    """Remove a temporary folder, as far as that can be done."""
    shutil.rmtree(temporary, ignore_errors=True)


def write(path: Path, state: Any) -> None:
    """Write a state to a new file and flush it to the disk."""
    with path.open("xb") as raw:
        file: Any = _Written(raw)
        try:
            torch.save(state, file)
        except Exception:
            if file.error is not None:
                raise file.error from None
            raise
        raw.flush()
        os.fsync(raw.fileno())


@contextlib.contextmanager
def checksummed() -> Iterator[None]:
    """torch.save adds checksums, though the program may have switched them off: resume reads them.

    This holds for the whole process meanwhile.
    """
    switch = getattr(torch.serialization, "set_crc32_options", None)
    if switch is None or torch.serialization.get_crc32_options():
        yield
        return
    switch(True)
    try:
        yield
    finally:
        switch(False)


class _Written:
    """A file that remembers why writing failed: torch.save raises an error of its own instead."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _flush_folder(path: Path) -> None:
    """Flush the names in a folder to the disk; neither possible nor needed on Windows."""
    if sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
