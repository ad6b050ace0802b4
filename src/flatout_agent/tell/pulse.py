"""The pulse: this process's steps in a ring of shared memory, for anyone watching the job.

One write into mapped memory per step: no thread, no socket and no system call in the user's
program. The layout is `flatout_agent.wire.pulse`'s.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
import time

from flatout_agent import wire
from flatout_agent.tell import stack_dump
from flatout_agent.wire import pulse as layout
from flatout_agent.wire.pulse import PulseHeader

MOST_COLLISIONS = 8
"""Numbers tried for rings of equal rank and pid, from other pid namespaces that share the
folder."""
UNKNOWN = math.nan
LARGEST = 3.4028234e38
"""The largest float32."""
WRITE_SLOT = layout.SLOT.pack_into
HEADER_BYTES, SLOT_BYTES, SLOTS = layout.HEADER_BYTES, layout.SLOT_BYTES, layout.SLOTS


class Pulse:
    """The ring of one process. A fork inherits it and must not write: see `forked`."""

    def __init__(self, folder: str) -> None:
        """Make the ring in `folder`. Raises OSError and ValueError if that is impossible."""
        self.folder = folder
        self.pid = os.getpid()
        self.forked = False
        """Whether this process is a fork of the one that made it; asking the system would cost a
        call."""
        self.sequence = 0
        self.flags = 0
        """The events since the last slot."""
        self.path, descriptor = _created(folder, self.pid)
        try:
            # A full file system must not end the program by SIGBUS at its first step.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, layout.PULSE_BYTES)
            else:
                os.write(descriptor, bytes(layout.PULSE_BYTES))
            self._map = mmap.mmap(descriptor, layout.PULSE_BYTES)
        except BaseException:
            os.unlink(self.path)  # noqa: PTH108
            raise
        finally:
            os.close(descriptor)
        self._header = _header(self.pid, stack_dump.install(f"{self.path}.stacks"))
        self._write_header()
        self._last: float | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._child)

    def _child(self) -> None:
        self.forked = True

    @property
    def rank(self) -> int:
        """Rank of this process, from the environment."""
        return self._header.rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the job, from the environment."""
        return self._header.world_size

    def trains_on(self, device: str, loader_workers: int = -1) -> None:
        """Record the type of the training device, and the number of its loader's workers."""
        self._header = self._header._replace(
            device=device.encode()[:8], loader_workers=loader_workers
        )
        self._write_header()

    def has_saved(self, size_bytes: int) -> None:
        """A checkpoint of this size was written."""
        if size_bytes > self._header.largest_save_bytes:
            self._header = self._header._replace(largest_save_bytes=size_bytes)
            self._write_header()

    def step(
        self,
        step: int,
        time_s: float,
        wait_s: float = 0.0,
        samples: int = 0,
        loss: float = UNKNOWN,
        micro_steps: int = 1,
        loss_scale: float = UNKNOWN,
        shapes: int = 0,
        own_s: float = UNKNOWN,
    ) -> None:
        """Write one step that has ended at `time_s` (`time.perf_counter()`)."""
        last, self._last = self._last, time_s
        self.sequence = sequence = self.sequence + 1
        flags, self.flags = self.flags, 0
        WRITE_SLOT(
            self._map,
            HEADER_BYTES + (sequence - 1) % SLOTS * SLOT_BYTES,
            sequence,
            step,
            time_s,
            0.0 if last is None else time_s - last,
            wait_s,
            loss if -LARGEST <= loss <= LARGEST or loss != loss else math.copysign(math.inf, loss),
            samples & 0xFFFFFFFF,
            shapes & 0xFFFFFFFF,
            flags & 0xFFFF,
            micro_steps if micro_steps < 0xFFFF else 0xFFFF,
            loss_scale if -LARGEST <= loss_scale <= LARGEST else UNKNOWN,
            own_s,
            sequence,
        )

    def end(self) -> None:
        """Record that the interpreter has ended by itself."""
        if not self.forked:
            self._header = self._header._replace(flags=self._header.flags | layout.ENDED)
            self._write_header()

    @property
    def closed(self) -> bool:
        """Whether it takes no more steps."""
        return self._map.closed

    def close(self) -> None:
        """Release the ring's memory: Windows removes no file before."""
        self._map.close()

    def _write_header(self) -> None:
        layout.HEADER.pack_into(self._map, 0, *self._header)


def _created(folder: str, pid: int) -> tuple[str, int]:
    """The path of a new empty file of our own for the ring, and its descriptor."""
    rank, _ = _rank_and_size()
    options = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    options |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    for number in range(1, MOST_COLLISIONS + 1):
        suffix = "" if number == 1 else f"-{number}"
        path = os.path.join(folder, f"{max(0, rank)}-{pid}{suffix}{layout.SUFFIX}")  # noqa: PTH118
        try:
            return path, os.open(path, options, 0o600)
        except FileExistsError:
            continue
    raise FileExistsError(f"{MOST_COLLISIONS} rings of process {pid} in {folder}")


def _header(pid: int, dump_signal: int) -> PulseHeader:
    rank, size = _rank_and_size()
    return PulseHeader(
        magic=layout.MAGIC,
        version=layout.PULSE_VERSION,
        slot_bytes=layout.SLOT_BYTES,
        slots=layout.SLOTS,
        pid=pid,
        start_ticks=start_ticks(),
        rank=max(0, rank),
        world_size=max(1, size),
        flags=0,
        dump_signal=dump_signal,
        pid_namespace=pid_namespace(),
        began_s=time.perf_counter(),
        device=b"",
        loader_workers=-1,
        largest_save_bytes=0,
    )


def _rank_and_size() -> tuple[int, int]:
    """Rank and size as flatout set them, else as torchrun or the like did; -1 if unknown."""
    if wire.RANK_ENV in os.environ:
        return _number(wire.RANK_ENV), _number(wire.SIZE_ENV)
    return _number("RANK"), _number("WORLD_SIZE")


def _number(variable: str) -> int:
    """A whole number from the environment that fits the ring, or -1 if it is missing or invalid."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def start_ticks(pid: int | None = None) -> int:
    """When a process (None for this one) began, in the kernel's ticks, or 0 if unknown or gone."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        with open(f"/proc/{pid or 'self'}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def pid_namespace() -> int:
    """The inode of this process's pid namespace, or 0 if unknown."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return os.stat("/proc/self/ns/pid").st_ino & 0xFFFFFFFF  # noqa: PTH116
    except OSError:
        return 0


def opened(folder: str) -> Pulse | None:
    """A pulse in this folder, or None if none is ordered or none can be made."""
    if not folder:
        return None
    try:
        return Pulse(folder)
    except (OSError, ValueError, struct.error):
        return None
