"""The peak of host memory that a piece of work took."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

import torch

from flatout_agent.speedups.memory_counters import peak_resident_bytes
from flatout_train.memory.counters import give_back

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class HostPeak:
    """`with HostPeak() as peak: ...`, then `peak.bytes`: peak resident bytes above the start.

    Linux counts the peak of every process and lets it be reset; on macOS it is never reset, so only
    what exceeds the process's earlier peak is seen. 0 on Windows.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._begin = 0

    def __enter__(self) -> HostPeak:
        give_back(torch.device("cpu"))  # freed memory that is kept would hide new allocations
        try:
            RESET.write_text("5")
        except OSError:  # another system, or a /proc that is read-only
            self._begin = _highest()
        else:
            self._begin = _from_status("VmRSS")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bytes = max(0, _highest() - self._begin)


def _highest() -> int:
    """The peak resident bytes of this process, or 0 if unknown."""
    if sys.platform == "linux":
        return _from_status("VmHWM")
    return peak_resident_bytes() or 0


def _from_status(name: str) -> int:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    counts = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(counts[0]) * 1024 if counts else 0
