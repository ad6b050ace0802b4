"""The list of this user's running jobs: its place, and the contents of an entry.

An entry is a small JSON file `<id>.json` beside the folder `<id>.rings` of the job's pulses, in a
folder in memory that only this user can read. `flatout run` lists the job that it started.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VERSION = 1


@dataclass(frozen=True)
class JobEntry:
    """One job in the list."""

    id: str
    """`<pid>-<start ticks>` of the owner and, if known, the pid namespace."""
    pid: int
    """Process id of the owner, `flatout run`. The job ends with it."""
    start_ticks: int
    pid_namespace: int
    program: str
    folder: str
    run_folder: str
    rings: str
    """Folder of its rings."""
    began_s: float
    program_pid: int | None = None
    boosts: tuple[str, ...] = ()
    steps_expected: int | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    version: int = VERSION


def entry_id(pid: int, start_ticks: int, pid_namespace: int) -> str:
    """The name of a job that this process owns."""
    return f"{pid}-{start_ticks}" + (f"-{pid_namespace}" if pid_namespace else "")


def folders() -> list[Path]:
    """Folders for lists, best first: all are read, and the first usable one is written.

    Memory is preferred, as mapped files are not coherent over NFS.
    """
    if sys.platform == "win32":
        user = os.environ.get("USERNAME", "user")
    else:
        user = str(os.getuid())
    candidates = []
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        candidates.append(Path(runtime) / "flatout")
    if sys.platform.startswith("linux"):
        candidates.append(Path(f"/dev/shm/flatout-{user}"))
    candidates.append(Path(tempfile.gettempdir()) / f"flatout-{user}")
    return list(dict.fromkeys(candidates))


def writable() -> Path:
    """The folder in which this process lists a job. Raises OSError if none is usable."""
    for folder in folders():
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if is_own(folder) and os.access(folder, os.W_OK | os.X_OK):
                return folder
    raise OSError("no folder for the list of jobs: neither the runtime folder nor memory nor temp")


def is_own(folder: Path) -> bool:
    """Whether it is this user's folder, not writable for others, and not a link."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return False
    if sys.platform == "win32":
        return True
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def write(entry: JobEntry) -> None:
    """List the entry, or replace it, atomically. Raises OSError."""
    path = path_of(entry)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(entry), file)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def remove(entry: JobEntry) -> None:
    """Remove the entry and its rings."""
    with suppress(OSError):
        path_of(entry).unlink()
    shutil.rmtree(entry.rings, ignore_errors=True)


def path_of(entry: JobEntry) -> Path:
    """The entry's file."""
    return Path(entry.rings).with_suffix(".json")
