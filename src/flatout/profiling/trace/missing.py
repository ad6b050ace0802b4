"""Traces in which events are missing: sampled ones, and recorders that lost some of them."""

from __future__ import annotations

import numpy as np

from flatout.profiling.trace import operators
from flatout.profiling.trace.recording import DEVICE, Category, TraceRecording

LEAST = 100
"""Fewest recorded launches from which anything is concluded."""
DISTANCE = 16
"""CUDA numbers its calls one by one, and a complete trace has every second to fifth of them. If the
median distance between recorded numbers is above this, most launches are missing."""
LOST = 0.10
"""Share of the launches whose kernels are not in the trace."""


def launches(recording: TraceRecording) -> bool:
    """Whether so much of the device's work is missing that its gaps say nothing."""
    events = recording.events
    is_launch = recording.named(operators.KERNEL_LAUNCH.fullmatch)[events.name]
    calls = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation > 0))
    launching = calls[is_launch[calls]]
    if len(launching) < LEAST:
        return False
    numbers = np.unique(events.correlation[calls])
    if float(np.median(np.diff(numbers))) > DISTANCE:
        return True
    with_work = np.isin(events.correlation[launching], events.correlation[recording.rows(*DEVICE)])
    return float(np.mean(~with_work)) > LOST
