"""Checkpoints on the disk: written completely or not at all, verified before they are read.

A checkpoint is a folder `step-00000500` with one file per tracked object and, written last, a
`manifest.json` with the size and the SHA-256 of every other file. It is written under a temporary
name, every file and folder is flushed to the disk, and then renamed: a crash at any moment leaves
the older checkpoints as they were and at most a temporary folder, which the next writer removes.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from flatout_train.errors import CheckpointError

FORMAT = "flatout.checkpoint/1"
MANIFEST = "manifest.json"
STALE_S = 3600.0
"""Seconds without a write after which a temporary folder of another machine is abandoned."""

_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_TEMPORARY = re.compile(r"\.step-\d{8,}\.(?P<host>.+)\.(?P<pid>\d+)\.(?P<token>[0-9a-f]{8})\.tmp")
_mine: set[str] = set()
"""Tokens of this process's own temporary folders: process IDs are reused."""

Files = dict[str, dict[str, Any]]
"""Name inside the folder -> size in bytes and SHA-256."""


class SavedCheckpoint(NamedTuple):
    """A finished checkpoint: its step, its number among those of that step (from 1), its path."""

    step: int
    time: int
    path: Path


class BrokenError(Exception):
    """A checkpoint is damaged; the message says how."""


class Hashing:
    """A file that counts and hashes what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as error:  # torch.save would raise an error of its own instead
            self.error = error
            raise
        written = memoryview(data).nbytes
        self.size += written
        return written

    def flush(self) -> None:
        self._file.flush()

    def entry(self) -> dict[str, Any]:
        return {"size": self.size, "sha256": self._hash.hexdigest()}


class Filesystem:
    """All operations that change the disk, so that a test can crash between any two."""

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def write(self, path: Path, fill: Callable[[Hashing], object]) -> dict[str, Any]:
        """Write a new file with `fill` and flush it to the disk; returns its size and checksum."""
        with path.open("xb") as raw:
            file = Hashing(raw)
            try:
                fill(file)
            except Exception:
                if file.error is not None:
                    raise file.error from None
                raise
            raw.flush()
            os.fsync(raw.fileno())
        return file.entry()

    def flush_folder(self, path: Path) -> None:
        """Flush the names in a folder to the disk; neither possible nor needed on Windows."""
        if sys.platform == "win32":
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, path: Path, target: Path) -> None:
        path.rename(target)

    def remove(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)


class Folder:
    """The folder that holds the checkpoints of one training."""

    def __init__(self, path: str | os.PathLike[str], disk: Filesystem | None = None) -> None:
        self.path = Path(path).absolute()
        self.disk = disk or Filesystem()

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
        self.clean()
        temporary = self._temporary(step)
        self.disk.make_folder(temporary)
        return temporary

    def discard(self, temporary: Path) -> None:
        """Remove a temporary folder of this process."""
        self.disk.remove(temporary)
        _forget(temporary)

    def finish(
        self, temporary: Path, step: int, facts: dict[str, Any], files: Files
    ) -> SavedCheckpoint:
        """Write the manifest, flush everything to the disk, and give the folder its final name."""
        manifest = {"format": FORMAT, "step": step, "date": _now(), **facts, "files": files}
        manifest["checksum"] = _checksum(manifest)
        text = json.dumps(manifest, indent=1).encode()
        self.disk.write(temporary / MANIFEST, lambda file: file.write(text))
        for folder in [path for path in temporary.rglob("*") if path.is_dir()]:
            self.disk.flush_folder(folder)
        self.disk.flush_folder(temporary)
        times = max((entry.time for entry in self.entries() if entry.step == step), default=0) + 1
        name = f"step-{step:08d}" + (f"-{times}" if times > 1 else "")
        self.disk.rename(temporary, self.path / name)
        self.disk.flush_folder(self.path)
        _forget(temporary)
        return SavedCheckpoint(step, times, self.path / name)

    def prune(self, keep: int, newest: SavedCheckpoint, broken: Collection[Path] = ()) -> None:
        """Remove the checkpoints before `newest`, except those of the last `keep` steps.

        `broken` checkpoints do not count towards `keep`; folders not written by flatout stay.
        """
        kept_steps: set[int] = set()
        for entry in self.entries():
            if entry > newest:
                continue
            if len(kept_steps) < keep and entry.step not in kept_steps and entry.path not in broken:
                kept_steps.add(entry.step)
            elif _is_ours(entry.path):
                self._remove(entry)

    def clean(self) -> None:
        """Remove the temporary folders of writers that are no longer running."""
        for entry in os.scandir(self.path):
            match = _TEMPORARY.fullmatch(entry.name)
            if match and entry.is_dir() and _is_dead(Path(entry.path), match):
                self.disk.remove(Path(entry.path))

    def _remove(self, entry: SavedCheckpoint) -> None:
        """Rename the checkpoint, then remove it: a crash must not leave half of one."""
        temporary = self._temporary(entry.step)
        self.disk.rename(entry.path, temporary)
        self.disk.flush_folder(self.path)
        self.discard(temporary)

    def _temporary(self, step: int) -> Path:
        token = secrets.token_hex(4)
        _mine.add(token)
        return self.path / f".step-{step:08d}.{_host()}.{os.getpid()}.{token}.tmp"


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a finished checkpoint; `BrokenError` where it cannot be trusted."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise BrokenError(f"it has no {MANIFEST}") from None
    except ValueError:
        raise BrokenError(f"its {MANIFEST} is incomplete") from None
    name = str(manifest.get("format", "")) if isinstance(manifest, dict) else ""
    if name != FORMAT and re.fullmatch(r"flatout\.checkpoint/\d+", name):
        raise CheckpointError(
            f"{path} was written by a newer flatout ({name}, this one reads {FORMAT}): "
            "install that version to read it"
        )
    if name != FORMAT or manifest.pop("checksum", None) != _checksum(manifest):
        raise BrokenError(f"its {MANIFEST} was changed")
    return dict(manifest)


def verify(path: Path, name: str, entry: dict[str, Any]) -> None:
    """Check size and checksum of a file of a checkpoint; `BrokenError` where they differ."""
    try:
        size = (path / name).stat().st_size
        if size != entry["size"]:
            raise BrokenError(f"{name} has {size} bytes instead of {entry['size']}")
        if file_entry(path / name)["sha256"] != entry["sha256"]:
            raise BrokenError(f"{name} is damaged: its SHA-256 is not the one in {MANIFEST}")
    except PermissionError:
        raise
    except OSError as error:
        raise BrokenError(f"{name} cannot be read: {error.strerror or error}") from error


def file_entry(path: Path) -> dict[str, Any]:
    """Size and checksum of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def _is_ours(path: Path) -> bool:
    try:
        read_manifest(path)
    except (BrokenError, CheckpointError, OSError):
        return False
    return True


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _forget(temporary: Path) -> None:
    if match := _TEMPORARY.fullmatch(temporary.name):
        _mine.discard(match["token"])


def _is_dead(path: Path, name: re.Match[str]) -> bool:
    """Whether the writer of this temporary folder has ended; False in case of doubt."""
    if name["host"] == _host() and sys.platform != "win32":
        pid = int(name["pid"])
        if pid == os.getpid():
            return name["token"] not in _mine
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # it is running, and belongs to another user
    newest = 0.0
    with contextlib.suppress(OSError):
        newest = max(file.stat().st_mtime for file in (path, *path.rglob("*")))
    return 0.0 < newest < time.time() - STALE_S


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname()) or "unknown"
