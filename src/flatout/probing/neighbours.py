"""What other programs use of the cores, before a program of the user's runs and while it does."""

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
FULL, DISTURBS = 0.9, 0.1
"""A program is disturbed where this part of the cores is busy, and others use this part."""


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
    counters = counters or _of_machine
    before, began = counters(), time.monotonic()
    time.sleep(LOOK_S)
    after, elapsed_s = counters(), time.monotonic() - began
    used = [seen.get("cpu_busy_s") for seen in (before, after)]
    if used[0] is None or used[1] is None:
        return None
    return max(0.0, used[1] - used[0]) / elapsed_s


class Stretch:
    """A stretch of time in which a program of ours ran, beside whatever else did.

    ours_s: seconds of cores that the program has used so far.
    """

    def __init__(self, ours_s: Callable[[], float]) -> None:
        self._ours_s = ours_s
        self._began, self._busy, self._ours = self._now()

    def disturbed(self) -> bool:
        """Whether other programs took cores that it could have used; False if that is unknown.

        They do where all cores are busy. A few steps of the program then take many times as long.
        """
        now, busy, ours = self._now()
        elapsed_s, cores = now - self._began, limits.usable_cores()
        if self._busy is None or busy is None or elapsed_s <= 0:
            return False
        used = (busy - self._busy) / elapsed_s
        others = used - (ours - self._ours) / elapsed_s
        return used >= FULL * cores and others >= DISTURBS * cores

    def _now(self) -> tuple[float, float | None, float]:
        return time.monotonic(), _of_machine().get("cpu_busy_s"), self._ours_s()


def _of_machine() -> Mapping[str, float]:
    return other_host.counters() if sys.platform != "linux" else linux_host.counters(Path("/"))
