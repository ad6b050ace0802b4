"""Cores while steps are watched: those that this process may use, those it gets, and who takes the
rest.

Only Linux shows most of this; elsewhere it stays unknown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from flatout_agent import limits, wire
from flatout_agent.watch.profile import switches
from flatout_agent.watch.profile.process import cpu_used, small_file

OTHERS = 3
"""The most other processes named."""
LEAST_CORES = 0.05
"""The share of one core that another process must take to be named."""
TASKS = 512
"""The most threads of this process that are examined."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class _Counters:
    """Counters at one moment, in seconds."""

    steal_s: float | None = None
    throttled_s: float | None = None
    queued_s: dict[int, float] = field(default_factory=dict)
    """Seconds that each thread of this process was ready to run without a core."""
    processes: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Name and CPU seconds of each process."""


class CoreSharing:
    """Measures from `start` until `stop`; then `summary`."""

    def __init__(self) -> None:
        self._before = self._after = _Counters()

    def start(self) -> None:
        """The first watched step begins."""
        self._before = _counters()

    def stop(self) -> None:
        """The last watched step has ended."""
        self._after = _counters()

    def summary(self, steps: int, wall_s: float, own_pids: Iterable[int]) -> wire.CoresSeen:
        """The sharing per step. wall_s: seconds of all steps. own_pids: the program's other
        processes.
        """
        before, after = self._before, self._after
        delays = [
            now_s - before.queued_s.get(thread, now_s) for thread, now_s in after.queued_s.items()
        ]
        own = {os.getpid(), *own_pids}
        shares = [
            (f"{name} ({pid})", (seconds - before.processes[pid][1]) / wall_s)
            for pid, (name, seconds) in after.processes.items()
            if pid in before.processes and pid not in own and wall_s > 0
        ]
        busy = [entry for entry in shares if entry[1] >= LEAST_CORES]
        others = sorted(busy, key=lambda entry: -entry[1])
        return wire.CoresSeen(
            cores=limits.usable_cores(),
            physical=physical_cores(),
            machine=os.cpu_count() or 1,
            quota=limits.cpu_quota(),
            queued_s=max(delays) / steps if delays else None,
            steal_s=_per_step(after.steal_s, before.steal_s, steps),
            throttled_s=_per_step(after.throttled_s, before.throttled_s, steps),
            others_cores=sum(cores for _, cores in others) if after.processes else None,
            others=tuple(f"{name}: {cores:.1f} cores" for name, cores in others[:OTHERS]),
            threads_where=switches.threads_line(torch.get_num_threads()),
            affinity_where=switches.affinity_line(),
            variables=tuple(
                f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ
            ),
        )


def physical_cores() -> int | None:
    """Cores that this process may use, counting hyper-threads of one core once, or None
    if unknown.
    """
    if sys.platform != "linux":
        return None
    cores = set()
    for cpu in os.sched_getaffinity(0):
        text = small_file(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        if not text.strip():
            return None
        cores.add(text.strip())
    return len(cores) or None


def _counters() -> _Counters:
    if sys.platform != "linux":
        return _Counters()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    fields = small_file("/proc/stat").partition("\n")[0].split()[1:]
    times = [int(number) * tick for number in fields]
    delays = {}
    for task in _numbers("/proc/self/task")[:TASKS]:
        waited = small_file(f"/proc/self/task/{task}/schedstat").split()
        if len(waited) > 1:
            delays[task] = int(waited[1]) / 1e9
    return _Counters(
        steal_s=times[7] if len(times) > 7 else None,
        throttled_s=limits.throttled_s(),
        queued_s=delays,
        processes=_processes(),
    )


def _processes() -> dict[int, tuple[str, float]]:
    used = ((pid, cpu_used(pid)) for pid in _numbers("/proc"))
    return {pid: named for pid, named in used if named is not None}


def _per_step(now: float | None, before: float | None, steps: int) -> float | None:
    return None if now is None or before is None else max(0.0, now - before) / max(1, steps)


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []
