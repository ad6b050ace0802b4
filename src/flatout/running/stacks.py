"""Ask a training process for its stacks, also when it hangs; see `flatout_agent.stack_dump`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flatout.running.ring import Ring

MOST_BYTES = 1 << 20


def request(ring: Ring) -> bool:
    """Make the process write its stacks; False: it cannot, or it is not the one it was.

    A signal that nothing catches would end the program: what the kernel says decides.
    """
    if sys.platform == "win32" or not ring.header.dump_signal or ring.writer_alive() is not True:
        return False
    if not _catches(ring.header.pid, ring.header.dump_signal):
        return False
    try:
        os.kill(ring.header.pid, ring.header.dump_signal)
    except OSError:
        return False
    return True


def path(ring: Ring) -> Path:
    """The file that they are written to."""
    return ring.path.with_name(f"{ring.path.name}.stacks")


def read(ring: Ring, offset: int = 0) -> str:
    """What was written there from `offset` on; empty: nothing."""
    try:
        with path(ring).open("rb") as file:
            file.seek(offset)
            return file.read(MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def size(ring: Ring) -> int:
    """Bytes written there so far."""
    try:
        return path(ring).stat().st_size
    except OSError:
        return 0


def _catches(pid: int, number: int) -> bool:
    """Whether the process handles this signal, as the kernel says."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False
