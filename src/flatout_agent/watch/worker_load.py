"""How busy loader workers keep the cores: beside a model on the CPU that is part of loading's cost,
even where no step waits for a batch.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from flatout_agent.job import Job
from flatout_agent.limits import usable_cores

CPU_TICKS, START_TICKS = (11, 12), 19
"""Places of the ticks of CPU time, and of the start, behind a process's name in its `stat`."""


def share(job: Job) -> float | None:
    """Share of the usable cores that the workers of running epochs have taken since they were
    started, or None where the system does not tell.
    """
    if not sys.platform.startswith("linux"):
        return None
    iterators = (iterator for loader in job.loaders for iterator in job.iterators(loader))
    workers = (worker for iterator in iterators for worker in getattr(iterator, "_workers", ()))
    now, a_second, taken = time.clock_gettime(time.CLOCK_BOOTTIME), os.sysconf("SC_CLK_TCK"), 0.0
    for worker in workers:
        with suppress(OSError, IndexError, ValueError):  # it has just ended
            fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
            lived_s = now - int(fields[START_TICKS]) / a_second
            worked_s = sum(int(fields[place]) for place in CPU_TICKS) / a_second
            taken += min(1.0, worked_s / max(lived_s, 1 / a_second))
    return min(1.0, taken / usable_cores())
