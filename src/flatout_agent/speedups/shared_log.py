"""Memory that a process and its forked loader workers share: keys and bytes that never change.

It is a file without a name, to which each process appends. Nobody needs to remove it: the system
frees it when the last process that has it ends, however it ends.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Declined

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job

USED, COUNT, HITS, MISSES, FULL, ON, OFF = range(7)
"""The counters of a log: bytes and entries in it; reads that it has answered and that it has not;
whether there is no room left, whether it is in use, and whether it is given up for good."""
HEADER = mmap.PAGESIZE
REASON, LONGEST_REASON = 256, 1024
"""Where the header holds the reason why a log was given up, and how many bytes it may have."""
RECORD = 24
"""Bytes before those of an entry: 16 for its key, 8 for their number."""


def _memory() -> int:
    """A file without a name."""
    if sys.platform != "linux":
        raise OSError("only Linux has files in memory")
    return os.memfd_create("flatout")


def _written(file: int, parts: list[bytes], place: int) -> int:
    if sys.platform == "win32":
        return 0
    return os.pwritev(file, parts, place)


class Log:
    """Keys and bytes in shared memory; entries never change."""

    def __init__(self, room: int) -> None:
        """`room`: the most bytes. Raises OSError or AttributeError if there is no such memory."""
        self._file = _memory()
        try:
            self.room = room
            os.ftruncate(self._file, HEADER + room)
            self._view = memoryview(mmap.mmap(self._file, HEADER + room))
        except BaseException:
            os.close(self._file)
            raise
        self.numbers = self._view[:HEADER].cast("q")
        self._places: dict[bytes, tuple[int, int]] = {}
        self._bytes_read = 0
        self.thread_lock = threading.Lock()
        """Excludes other threads of this process; between processes the file is locked."""
        _logs.add(self)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # the memory is freed with its last view
            os.close(self._file)

    def get(self, key: bytes) -> memoryview | None:
        """The bytes under this key, if some process has added them."""
        extent = self._places.get(key)
        if extent is None and self._bytes_read < self.numbers[USED]:
            with self.thread_lock:
                self._catch_up()
            extent = self._places.get(key)
        return None if extent is None else self._view[extent[0] : extent[0] + extent[1]]

    def put(self, key: bytes, data: bytes) -> bool:
        """Add these bytes, if there is room and no process has done so; whether they were added."""
        if self.numbers[FULL]:
            return False
        with self._alone():
            self._catch_up()
            return key not in self._places and self._append(key, data)

    def count(self, number: int, by: int = 1) -> None:
        """Add to counter `number`, alone: if two processes added at once, one count would be
        lost.
        """
        with self._alone():
            self.numbers[number] += by

    def give_up(self, reason: str) -> None:
        """Tell all processes that it is given up for good, and why."""
        text = reason.encode(errors="replace")[:LONGEST_REASON]
        with self._alone():
            if not self.numbers[OFF]:
                self._view[REASON : REASON + len(text)] = text
                self.numbers[OFF] = 1

    def reason(self) -> str:
        """Why it was given up."""
        text = bytes(self._view[REASON : REASON + LONGEST_REASON])
        return text.rstrip(bytes(1)).decode(errors="replace")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep all other threads and processes from writing to the log meanwhile."""
        if sys.platform == "win32":
            raise OSError("only Linux has files in memory")
        import fcntl

        with self.thread_lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # freed by the system if the process is killed
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _append(self, key: bytes, data: bytes) -> bool:
        numbers, begin = self.numbers, self.numbers[USED]
        size = RECORD + len(data)
        if begin + size > self.room:
            numbers[FULL] = 1
            return False
        record = [key + len(data).to_bytes(8, "little"), data]
        try:
            written = _written(self._file, record, HEADER + begin)
        except OSError:  # whereas writing through the view would end the process
            written = 0
        if written != size:
            numbers[FULL] = 1
            return False
        numbers[USED] = begin + size  # others may read it from here on
        return True

    def _catch_up(self) -> None:
        """Read what other processes have added."""
        used = self.numbers[USED]
        while self._bytes_read < used:
            begin = HEADER + self._bytes_read
            key = bytes(self._view[begin : begin + 16])
            size = int.from_bytes(self._view[begin + 16 : begin + RECORD], "little")
            self._places[key] = (begin + RECORD, size)
            self._bytes_read += RECORD + size


def made(room: int) -> Log:
    """A new log for this many bytes. Raises Declined if there is no such memory."""
    try:
        return Log(room)
    except (OSError, AttributeError, ValueError) as error:
        raise Declined(f"no shared memory: {type(error).__name__}: {error}") from None


_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def _forked() -> None:
    """Another thread may have held a lock, and does not exist here to release it."""
    for log in list(_logs):
        log.thread_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


PATIENCE = 20
"""After this many steps, a program that has asked for nothing is not expected to."""
READY_SHARE = 0.95
"""At this share of hits, the entries still to be added make no difference."""
LATELY = 1000
"""The number of reads over which the share is computed."""


class Readiness:
    """How long until a log has all that one loader's samples need."""

    def __init__(self, job: Job, loader: torch.utils.data.DataLoader[Any], log: Log) -> None:
        self._job, self._loader, self._log = job, weakref.ref(loader), log
        self._began = job.steps
        self._hits, self._misses = log.numbers[HITS], log.numbers[MISSES]

    def batches(self) -> int:
        """The number of batches, as far as known."""
        loader, numbers = self._loader(), self._log.numbers
        if loader is None or numbers[FULL] or numbers[OFF] or not numbers[ON]:
            return 0
        hits, misses = numbers[HITS], numbers[MISSES]
        requests = hits + misses - self._hits - self._misses
        if not requests and self._job.steps - self._began >= PATIENCE:
            return 0
        if requests >= LATELY:
            share = (hits - self._hits) / requests
            self._hits, self._misses = hits, misses
            if share >= READY_SHARE:
                return 0
        counts = []
        parts: tuple[Any, ...] = (loader.dataset, loader.sampler)
        for part in parts:
            with contextlib.suppress(Exception):  # endless, or the program's own
                counts.append(len(part))
        size = getattr(loader, "batch_size", None) or 1
        missing = min(counts) - numbers[COUNT] if counts else 0
        return max(0, math.ceil(missing / size))
