"""The window: the recorded steps whose time is attributed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.profiling.trace import operators
from flatout.profiling.trace.device import Work
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.recording import Category, Flags, Ints, TraceRecording

LEAST_SHARE = 0.5
"""A step at either end with less than this share of the usual events was cut off."""


@dataclass(frozen=True)
class TimeWindow:
    """[begin, end) in ns.

    On an accelerator it begins when the device has finished the work launched before the first
    mark, and ends when it has finished the work launched before the last mark's end. So the work
    of each step is counted once and completely, however far the host runs ahead.
    """

    begin: int
    end: int
    marks: tuple[tuple[int, int], ...]
    """Begin and end of each step on the host; empty if the trace marks none."""

    @property
    def steps(self) -> int:
        """The number of steps in the window, at least 1."""
        return max(len(self.marks), 1)

    @property
    def host(self) -> tuple[int, int]:
        """From the first mark's begin to the last one's end."""
        return (self.marks[0][0], self.marks[-1][1]) if self.marks else (self.begin, self.end)

    def inside(self, begin: Ints) -> Flags:
        """Whether the host began this in one of the steps."""
        low, high = self.host
        is_inside: Flags = (begin >= low) & (begin < high)
        return is_inside


def is_mark(name: str) -> bool:
    """Whether this is the name of a step."""
    return operators.STEP.fullmatch(name) is not None


def marks(recording: TraceRecording, host: Host) -> tuple[tuple[int, int], ...]:
    """The recorded steps, without steps that were cut off at the begin or the end."""
    events = recording.events
    is_step = recording.named(is_mark)[events.name]
    rows = np.flatnonzero(is_step & (events.category == Category.ANNOTATION))
    steps = [(int(events.begin[row]), int(events.end[row])) for row in rows.tolist()]
    steps = [mark for mark in steps if mark[1] > mark[0]]
    if len(steps) < 2:
        return tuple(steps)
    begins = np.sort(events.begin[host.rows])
    counts = [int(np.diff(np.searchsorted(begins, mark))[0]) for mark in steps]
    minimum = (
        LEAST_SHARE * float(np.median(counts)) if len(steps) > 2 else LEAST_SHARE * max(counts)
    )
    complete = [number for number, count in enumerate(counts) if count >= minimum]
    return tuple(steps[complete[0] : complete[-1] + 1])


def window(recording: TraceRecording, host: Host, work: Work) -> TimeWindow:
    """The window of this recording, given the device's `work`."""
    events = recording.events
    step_marks = marks(recording, host)
    if not len(work.rows):
        if step_marks:
            return TimeWindow(step_marks[0][0], step_marks[-1][1], step_marks)
        rows = host.rows if len(host.rows) else np.arange(len(events))
        return TimeWindow(int(events.begin[rows].min()), int(events.end[rows].max()), ())
    begin, end = events.begin[work.rows], events.end[work.rows]
    launch_times = np.where(work.launched >= 0, work.launched, begin)
    if not step_marks:
        return TimeWindow(int(min(launch_times.min(), begin.min())), int(end.max()), ())
    low, high = step_marks[0][0], step_marks[-1][1]
    ends_before, ends_inside = end[(launch_times < low) | work.orphaned], end[launch_times < high]
    first, last = max(low, ends_before.max(initial=low)), max(high, ends_inside.max(initial=high))
    return (
        TimeWindow(int(first), int(last), step_marks)
        if first < last
        else TimeWindow(low, high, step_marks)
    )
