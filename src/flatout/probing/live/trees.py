"""What a process and its descendants use."""

from __future__ import annotations

import platform
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

MEMORY_EVERY_S = 10.0
FAMILY_EVERY_S = 5.0


class TreeUse:
    """One process with its descendants, polled repeatedly."""

    def __init__(self, root_pid: int) -> None:
        self.pid = root_pid
        self._members: dict[int, psutil.Process] = {}
        self._used_s: dict[int, float] = {}
        self._last_s: float | None = None
        self._family_s: float | None = None
        self._memory_s: float | None = None
        self._memory: int | None = None
        self._pss: dict[int, int] = {}

    def read(self) -> tuple[float | None, int | None, frozenset[int]]:
        """(cores used since the last call, bytes, the pids); None if unknown yet or gone.

        Memory that processes share counts once if the system reports it (Linux).
        """
        now_s = time.monotonic()
        if self._family_s is None or now_s - self._family_s >= FAMILY_EVERY_S:
            self._family_s = now_s
            known, self._members = self._members, {}
            with suppress(psutil.Error):
                root = known.get(self.pid) or psutil.Process(self.pid)
                if root.is_running():
                    for process in (root, *root.children(recursive=True)):
                        self._members[process.pid] = known.get(process.pid, process)
        cores = self._cores(now_s)
        if self._memory_s is None or now_s - self._memory_s >= MEMORY_EVERY_S:
            self._memory_s = now_s
            self._pss = {pid: _shared_beyond_own(pid) for pid in self._members}
        memory = None
        for pid, process in self._members.items():
            with suppress(psutil.Error):
                own = max(0, process.memory_info().rss - self._pss.get(pid, 0))
                memory = own if memory is None else memory + own
        return cores, memory, frozenset(self._members)

    def _cores(self, now_s: float) -> float | None:
        """Cores used since the last call by processes that already ran then and still run."""
        spent, used = 0.0, {}
        for pid, process in list(self._members.items()):
            try:
                times = process.cpu_times()
            except psutil.Error:
                del self._members[pid]
                continue
            used[pid] = times.user + times.system
            if pid in self._used_s:
                spent += max(0.0, used[pid] - self._used_s[pid])
        last_s, self._last_s, self._used_s = self._last_s, now_s, used
        if last_s is None or not used or now_s <= last_s:
            return None
        return spent / (now_s - last_s)


READS = {"x86_64": (0, (23, 270)), "aarch64": (63, (72,))}
"""Numbers of the system call read, and of select and pselect6."""


def waits_for_input(pid: int) -> bool:
    """Whether the process waits for a line from its terminal, as `input()` and debuggers do.

    Linux reports it for one's own descendants and for others that may be traced. Otherwise only a
    plain read of a terminal is known.
    """
    calls = READS.get(platform.machine())
    if not sys.platform.startswith("linux") or calls is None:
        return False
    try:
        if Path(f"/proc/{pid}/wchan").read_text(encoding="ascii") == "n_tty_read":
            return True
        words = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
        number, first = int(words[0]), int(words[1], 16)
    except (OSError, ValueError, IndexError):  # it runs, or may not be queried
        return False
    read, selects = calls
    # Readline waits by select for descriptors below 1, which is only standard input.
    return (number == read and first == 0) or (number in selects and first == 1)


def _shared_beyond_own(pid: int) -> int:
    """Bytes of its resident memory that count for others: resident minus proportional."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split()[0]: 1024 * int(line.split()[1]) for line in lines[1:]}
        return max(0, sizes["Rss:"] - sizes["Pss:"])
    except (OSError, ValueError, KeyError, IndexError):
        return 0
