"""The anatomy of real traces against an independent tool: HolisticTraceAnalysis.

Like is compared with like: its window is from the first kernel's begin to the last one's end,
and it cuts times to whole microseconds, inwards, where the trace has fractions.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flatout.nouns.anatomy import WAITS, Kind
from flatout.profiling.trace import intervals
from flatout.profiling.trace.anatomy import anatomy
from flatout.profiling.trace.attribution import look
from flatout.profiling.trace.device import RANKS
from flatout.profiling.trace.reading import read
from flatout.profiling.trace.recording import DEVICE, Category
from profiling.trace.making import REAL, real

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("hta") is None, reason="HolisticTraceAnalysis is not installed"
    ),
]
COMPUTATION, COMMUNICATION, MEMORY = range(3)
NAMES = ("COMPUTATION", "COMMUNICATION", "MEMORY")
WAITS_OF_THE_HOST = ("Stream Wait Event", "Stream Sync", "Context Sync", "Event Sync")
POINT = 0.01


def test_another_tool_counts_the_same() -> None:
    """All traces in one test: the other tool takes its time to start."""
    script = Path(__file__).with_name("hta_reads.py")
    paths = [str(real(name)) for name in REAL]
    command = [sys.executable, str(script), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    found = json.loads(done.stdout)
    for name in REAL:
        (recording,) = read([real(name)])
        rows = recording.rows(*DEVICE)
        span = int(recording.events.begin[rows].min()), int(recording.events.end[rows].max())
        assert_same(look(recording, span=span), found[str(real(name))])


def busy(seen):
    """Begin, end and sort of all device work, its times cut as the other tool cuts them."""
    events, rows = seen.recording.events, seen.work.rows
    sort = np.full(len(rows), COMPUTATION)
    sort[seen.work.rank == RANKS[Kind.COMMUNICATION]] = COMMUNICATION
    sort[np.isin(events.category[rows], (Category.MEMCPY, Category.MEMSET))] = MEMORY
    # Without a base time they are us since 1970, of which a double holds quarters.
    clock = 1 if "baseTimeNanoseconds" in seen.recording.metadata else 250
    last = np.rint(events.end[rows] / clock).astype(np.int64) * clock
    begin, end = -(-events.begin[rows] // 1000), last // 1000
    return begin, np.maximum(end, begin), sort


def sorts(seen):
    """Time of each combination of sorts, in us, by the other tool's names for them."""
    begin, end, sort = busy(seen)
    times = np.unique(np.r_[begin, end])
    low, high = times[:-1], times[1:]
    mask = np.zeros(len(low), np.int64)
    for number in range(3):
        mine = sort == number
        mask |= (intervals.covered(begin[mine], end[mine], low, high) > 0) << number
    found = {}
    for bits in range(1, 8):
        name = " overlapping ".join(NAMES[number] for number in range(3) if bits >> number & 1)
        found[name] = int((high - low)[mask == bits].sum())
    return {name: us for name, us in found.items() if us}


def assert_same(seen, other):
    # kinds of kernels and their overlaps are the same
    theirs = {kind: us for kind, us in other["kinds"].items() if us}
    assert sorts(seen) == pytest.approx(theirs, rel=POINT)
    # busy and idle are the same
    theirs = other["times"]
    begin, end, sort = busy(seen)
    first, last = intervals.union(begin, end)
    idle = int(end.max() - begin.min() - (last - first).sum())
    assert idle == pytest.approx(theirs["idle_time(us)"], rel=POINT)
    computing = intervals.union(begin[sort == COMPUTATION], end[sort == COMPUTATION])
    assert (computing[1] - computing[0]).sum() == pytest.approx(
        theirs["compute_time(us)"], rel=POINT
    )
    assert end.max() - begin.min() == pytest.approx(theirs["kernel_time(us)"], rel=POINT)
    # each kernel takes the same share
    begin, end, _ = busy(seen)
    names = seen.recording.events.name[seen.work.rows]
    mine = {
        seen.recording.names[number]: int((end - begin)[names == number].sum())
        for number in np.unique(names)
    }
    # It takes the device's notes of the host's waits ("Stream Wait Event") for kernels.
    theirs = {
        kernel: us
        for kernel, us in other["kernels"].items()
        if us and kernel not in WAITS_OF_THE_HOST
    }
    assert {kernel: us for kernel, us in mine.items() if us} == pytest.approx(theirs, rel=POINT)
    # the anatomy itself agrees within one point of the window
    theirs, found = other, anatomy(seen)
    window = theirs["times"]["kernel_time(us)"]
    assert found.step_ms * 1e3 == pytest.approx(window, rel=POINT)
    assert found.share(*WAITS) == pytest.approx(
        theirs["times"]["idle_time(us)"] / window, abs=POINT
    )
    kinds = theirs["kinds"]
    alone = sum(us for kind, us in kinds.items() if kind.startswith("COMMUNICATION"))
    hidden = sum(
        us for kind, us in kinds.items() if kind.startswith("COMPUTATION overlapping COMM")
    )
    assert found.share(Kind.COMMUNICATION) == pytest.approx(alone / window, abs=POINT)
    assert found.hidden_communication_ms * 1e3 / window == pytest.approx(hidden / window, abs=POINT)
    computing = theirs["times"]["compute_time(us)"] / window
    moving = found.share(Kind.COPY, Kind.COMMUNICATION)
    # What is copied on the device itself is computing here and memory there.
    memory = sum(us for kind, us in kinds.items() if "MEMORY" in kind) / window
    assert computing - POINT <= 1 - found.share(*WAITS) - moving <= computing + memory + POINT
    # the share of communication that is hidden
    share = other["overlap"]
    begin, end, sort = busy(seen)
    first, last = intervals.union(begin[sort == COMMUNICATION], end[sort == COMMUNICATION])
    computing = sort == COMPUTATION
    hidden = intervals.covered(begin[computing], end[computing], first, last).sum()
    if math.isnan(share):
        assert not len(first)
    else:
        assert hidden / (last - first).sum() * 100 == pytest.approx(share, abs=0.01)
