"""The window: the recorded steps whose time is divided up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.profiling.trace import operators
from flatout.profiling.trace.device import Work
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.recording import Category, Flags, Ints, Recording

WHOLE = 0.5
"""A step at the border with less than this share of the usual events was cut off."""


@dataclass(frozen=True)
class Window:
    """[begin, end) in ns.

    On an accelerator it begins when the device is done with what was launched before the first
    mark, and ends when it is done with what was launched before the last mark's end. So the
    work of each step is counted once and whole, however far the host runs ahead.
    """

    begin: int
    end: int
    marks: tuple[tuple[int, int], ...]
    """Begin and end of each step on the host; empty: the trace marks none."""

    @property
    def steps(self) -> int:
        """What the window is divided by."""
        return max(len(self.marks), 1)

    @property
    def host(self) -> tuple[int, int]:
        """From the first mark's begin to the last one's end."""
        return (self.marks[0][0], self.marks[-1][1]) if self.marks else (self.begin, self.end)

    def inside(self, begin: Ints) -> Flags:
        """Whether the host began this in one of the steps."""
        low, high = self.host
        found: Flags = (begin >= low) & (begin < high)
        return found


def is_mark(name: str) -> bool:
    """Whether this is the name of a step."""
    return operators.STEP.fullmatch(name) is not None


def marks(recording: Recording, host: Host) -> tuple[tuple[int, int], ...]:
    """The recorded steps; one that was cut off at the begin or the end is left out."""
    events = recording.events
    named = recording.named(is_mark)[events.name]
    rows = np.flatnonzero(named & (events.category == Category.ANNOTATION))
    found = [(int(events.begin[row]), int(events.end[row])) for row in rows.tolist()]
    found = [mark for mark in found if mark[1] > mark[0]]
    if len(found) < 2:
        return tuple(found)
    begins = np.sort(events.begin[host.rows])
    counts = [int(np.diff(np.searchsorted(begins, mark))[0]) for mark in found]
    least = WHOLE * float(np.median(counts)) if len(found) > 2 else WHOLE * max(counts)
    whole = [number for number, count in enumerate(counts) if count >= least]
    return tuple(found[whole[0] : whole[-1] + 1])


def window(recording: Recording, host: Host, work: Work) -> Window:
    """The window of this recording, with the device's `work`."""
    events = recording.events
    found = marks(recording, host)
    if not len(work.rows):
        if found:
            return Window(found[0][0], found[-1][1], found)
        rows = host.rows if len(host.rows) else np.arange(len(events))
        return Window(int(events.begin[rows].min()), int(events.end[rows].max()), ())
    begin, end = events.begin[work.rows], events.end[work.rows]
    when = np.where(work.launched >= 0, work.launched, begin)
    if not found:
        return Window(int(min(when.min(), begin.min())), int(end.max()), ())
    low, high = found[0][0], found[-1][1]
    earlier, later = end[(when < low) | work.orphaned], end[when < high]
    first, last = max(low, earlier.max(initial=low)), max(high, later.max(initial=high))
    return Window(int(first), int(last), found) if first < last else Window(low, high, found)
