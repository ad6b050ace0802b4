"""The jobs of this user that `flatout run` started on this machine: a small file for each.

They stand in a folder in memory that only this user can read, with the rings of the job beside
them. Who reads the list changes nothing; what a killed `flatout run` has left goes with the next.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flatout.nouns.decoding import decode
from flatout.running.ring import pid_namespace, same_process, ticks_of

VERSION = 1
MOST_BYTES = 64 * 1024
"""Of an entry; nothing larger is read."""
KEPT_S = 600.0
"""The entry of a job that has ended is kept for so long, for who watches."""


@dataclass(frozen=True)
class JobEntry:
    """One job in the list."""

    id: str
    """`<pid>-<start ticks>` of `flatout run`, and where it is known the pid namespace."""
    pid: int
    """Of `flatout run`."""
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

    @property
    def host_alive(self) -> bool | None:
        """Whether its `flatout run` still runs; None: it belongs to another pid namespace."""
        if self.pid_namespace not in (0, pid_namespace()):
            return None
        return same_process(self.pid, self.start_ticks)


def folders() -> list[Path]:
    """Where lists may stand, the best place first: all are read, the first that serves is written.

    In memory: mapped files are not coherent over NFS.
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


def new_entry(program: str, run_folder: Path, boosts: tuple[str, ...] = ()) -> JobEntry:
    """An entry for this process, with an empty folder for rings. Raises OSError: no folder serves.

    What dead jobs have left in that list is removed.
    """
    import time

    namespace, ticks = pid_namespace(), ticks_of(os.getpid()) or 0
    name = f"{os.getpid()}-{ticks}" + (f"-{namespace}" if namespace else "")
    folder = _writable()
    _sweep(folder)
    rings = folder / f"{name}.rings"
    if rings.exists():  # an earlier run of this very process
        shutil.rmtree(rings, ignore_errors=True)
    rings.mkdir(mode=0o700)
    return JobEntry(
        id=name,
        pid=os.getpid(),
        start_ticks=ticks,
        pid_namespace=namespace,
        program=program,
        folder=str(Path.cwd()),
        run_folder=str(run_folder.absolute()),
        rings=str(rings),
        began_s=time.time(),
        boosts=boosts,
    )


def write(entry: JobEntry) -> None:
    """List the entry, or list it anew, whole or not at all. Raises OSError."""
    path = _path(entry)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(entry), file)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def clear(entry: JobEntry) -> None:
    """Take its rings away; the entry stays for those who watch, until a later run removes it."""
    shutil.rmtree(entry.rings, ignore_errors=True)


def remove(entry: JobEntry) -> None:
    """Take the entry and its rings away."""
    with suppress(OSError):
        _path(entry).unlink()
    shutil.rmtree(entry.rings, ignore_errors=True)


def listed() -> list[JobEntry]:
    """All entries that can be read, the oldest first; damaged ones are left out."""
    entries = [entry for folder in folders() if _own(folder) for entry in _entries(folder)]
    return sorted(entries, key=lambda entry: (entry.began_s, entry.id))


def _entries(folder: Path) -> Iterator[JobEntry]:
    with suppress(OSError):
        for path in sorted(folder.glob("*.json")):
            entry = _read(path)
            if entry is not None:
                yield entry


def _read(path: Path) -> JobEntry | None:
    try:
        if path.is_symlink() or path.stat().st_size > MOST_BYTES:
            return None
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    entry = decode(JobEntry, raw)
    return entry if entry is not None and entry.version <= VERSION else None


def _path(entry: JobEntry) -> Path:
    return Path(entry.rings).with_suffix(".json")


def _writable() -> Path:
    for folder in folders():
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if _own(folder) and os.access(folder, os.W_OK | os.X_OK):
                return folder
    raise OSError("no folder for the list of jobs: neither the runtime folder nor memory nor temp")


def _own(folder: Path) -> bool:
    """Whether it is a folder of this user that nobody else may write to, and no link."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return False
    if sys.platform == "win32":
        return True
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _sweep(folder: Path) -> None:
    """Remove what jobs have left whose `flatout run` is gone, after a while."""
    import time

    for entry in _entries(folder):
        ended = entry.ended_s if entry.ended_s is not None else entry.began_s
        if entry.host_alive is False and abs(time.time() - ended) > KEPT_S:
            remove(entry)
