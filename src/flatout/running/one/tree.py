"""A program with everything that it started: find, pause, resume and end all of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import psutil

POLL_S = 0.02
KILL_ROUNDS = 5
"""A process may start another while it is being killed, but not for ever."""

Find = Callable[[], list[psutil.Process]]


def family(root: psutil.Process, session: bool) -> list[psutil.Process]:
    """`root` and its descendants; with `session`, also the rest of the session that it leads.

    The session holds those whose parent has already died. Zombies are not counted.
    """
    by_pid: dict[int, psutil.Process] = {}
    with suppress(psutil.Error):
        if root.is_running():
            by_pid = {process.pid: process for process in [root, *root.children(recursive=True)]}
    if session:
        by_pid |= {
            process.pid: process for process in _session(root.pid) if process.pid not in by_pid
        }
    return [process for process in by_pid.values() if is_alive(process)]


def marked(variable: str, value: str) -> list[psutil.Process]:
    """Processes of this user that were started with a `variable` that begins with `value`.

    Finds those that left both their parent and their session. An empty `value` finds nothing.
    """
    processes = []
    for process in psutil.process_iter() if value else ():
        with suppress(psutil.Error, OSError):
            if process.environ().get(variable, "").startswith(value) and is_alive(process):
                processes.append(process)
    return [process for process in processes if process.pid != os.getpid()]


def is_alive(process: psutil.Process) -> bool:
    """Whether it exists and is not a zombie that only waits for its parent."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def found(pid: int) -> psutil.Process | None:
    """The process with this id now, so that a later one with the same id is not taken for it."""
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def suspend(find: Find) -> None:
    """Stop every process, including those started meanwhile."""
    stopped: set[psutil.Process] = set()
    while running := [member for member in find() if member not in stopped]:
        for process in running:
            with suppress(psutil.Error):
                process.suspend()
        stopped.update(running)


def resume(find: Find) -> None:
    """Let every process continue."""
    for process in find():
        with suppress(psutil.Error):
            process.resume()


def end(find: Find, grace_s: float) -> None:
    """Ask every process to end; after `grace_s` kill those that are left."""
    processes: set[psutil.Process] = set()

    def remaining() -> list[psutil.Process]:
        processes.update(find())  # once seen, a process is followed even when its parent is gone
        return [member for member in processes if is_alive(member)]

    for process in remaining():
        with suppress(psutil.Error):
            process.terminate()
            process.resume()  # a stopped process reacts to nothing but SIGKILL
    if _gone(remaining, grace_s):
        return
    for _ in range(KILL_ROUNDS):
        for process in remaining():
            with suppress(psutil.Error):
                process.kill()
        if _gone(remaining, 1.0):
            return


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Seconds of cores that these have used, with children that have ended."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Resident memory now; memory shared with a child counts once if the system reports it."""
    total = 0
    for index, process in enumerate(processes):
        with suppress(psutil.Error):
            info = process.memory_info()
            total += info.rss - (getattr(info, "shared", 0) if index else 0)
    return total


def _session(leader: int) -> Iterator[psutil.Process]:
    if sys.platform == "win32":
        return
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):
            if os.getsid(pid) == leader:
                yield psutil.Process(pid)


def _gone(remaining: Find, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while remaining():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
