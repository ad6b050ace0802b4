"""The jobs of this user on this machine, as `flatout_agent.wire.job_list` keeps them.

Reading the list changes nothing. The next `flatout run` removes what killed jobs have left.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flatout.nouns.decoding import decode
from flatout.running.one.ring import pid_namespace, same_process, ticks_of
from flatout_agent.wire import job_list
from flatout_agent.wire.job_list import JobEntry

MOST_BYTES = 64 * 1024
"""The largest entry that is read."""
KEPT_S = 600.0
"""How long the entry of a job that has ended is kept for those who watch."""


def new_entry(program: str, run_folder: Path, boosts: tuple[str, ...] = ()) -> JobEntry:
    """An entry for this process, with an empty folder for rings. Raises OSError if there is none.

    Removes what dead jobs have left in the list.
    """
    namespace, ticks = pid_namespace(), ticks_of(os.getpid()) or 0
    name = job_list.entry_id(os.getpid(), ticks, namespace)
    folder = job_list.writable()
    # Remove what is left of jobs whose owner has been gone for a while.
    for entry in _entries(folder):
        ended = entry.ended_s if entry.ended_s is not None else entry.began_s
        if owner_alive(entry) is False and abs(time.time() - ended) > KEPT_S:
            job_list.remove(entry)
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


def owner_alive(entry: JobEntry) -> bool | None:
    """Whether its owner still runs, or None if it belongs to another pid namespace."""
    if entry.pid_namespace not in (0, pid_namespace()):
        return None
    return same_process(entry.pid, entry.start_ticks, entry.began_s)


def clear(entry: JobEntry) -> None:
    """Remove its rings. The entry stays for those who watch, until a later run removes it."""
    shutil.rmtree(entry.rings, ignore_errors=True)


def listed() -> list[JobEntry]:
    """All entries, the oldest first, without damaged ones."""
    entries = [
        entry
        for folder in job_list.folders()
        if job_list.is_own(folder)
        for entry in _entries(folder)
    ]
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
    return entry if entry is not None and entry.version <= job_list.VERSION else None
