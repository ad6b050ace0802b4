"""What other programs use of the cores, before a program of the user's is started."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flatout.probing.live import linux_host, other_host
from flatout_agent import limits

LOOK_S = 0.25
SHARED = 0.25
"""Where others use this part of the cores, times differ by more than most boosts gain."""


def told() -> str | None:
    """A line on the other programs' use of the cores, or None if it is little or unknown."""
    busy, cores = busy_cores(), limits.usable_cores()
    if busy is None or busy < SHARED * cores:
        return None
    return f"other programs use {busy:.1f} of {cores} cores: answers will be rough"


def busy_cores(counters: Callable[[], Mapping[str, float]] | None = None) -> float | None:
    """The number of usable cores in use now, by this process too, or None if unknown.

    counters: seconds in use by the names of `linux_host.counters`, or None for this machine's.
    """
    if counters is None:
        counters = other_host.counters if sys.platform != "linux" else _of_linux
    before, began = counters(), time.monotonic()
    time.sleep(LOOK_S)
    after, elapsed_s = counters(), time.monotonic() - began
    used = [seen.get("cpu_busy_s") for seen in (before, after)]
    if used[0] is None or used[1] is None:
        return None
    return max(0.0, used[1] - used[0]) / elapsed_s


def _of_linux() -> Mapping[str, float]:
    return linux_host.counters(Path("/"))
