"""What an optimizer's step calls in its closure, by the frames of recorded stacks.

The only foreign code that torch's optimizers call is their closure. Code below the first foreign
frame is therefore not an update, even if it computes no gradients. Frameworks that run the loop
keep their hooks there: clipping, and reports of gradients before each update.
"""

from __future__ import annotations

import sys

import numpy as np

from flatout.profiling.trace import lines
from flatout.profiling.trace.host import by_thread
from flatout.profiling.trace.intervals import nest
from flatout.profiling.trace.recording import Category, Flags, TraceRecording

OPTIMIZERS = "torch/optim/"
STEP = "step"
OVERRIDES = "__torch_"
"""Prefix of the functions of a tensor type that torch calls."""
WITHOUT = ("/torch/", "/flatout_agent/", "/flatout_train/", "/<")
"""Parts of paths of files whose functions are not a closure."""
LIBRARY, PACKAGES = "lib/python", "-packages/"
OUTSIDE, UPDATING, CALLED = 0, 1, 2
"""States of a row: outside any optimizer's step, in one, in the closure of one."""


def called(recording: TraceRecording) -> Flags:
    """For each row, whether it is in the closure of an optimizer's step; none without stacks."""
    flags = np.zeros(len(recording.events), np.bool_)
    is_step = recording.named(_is_step)
    if not (recording.events.category == Category.PYTHON).any() or not is_step.any():
        return flags
    is_other = recording.named(_is_other)
    rows = recording.rows(Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON)
    for _, thread_rows in by_thread(recording, rows):
        # For each row of a thread: OUTSIDE, UPDATING or CALLED.
        events = recording.events
        nested = nest(events.begin[thread_rows], events.end[thread_rows])
        is_frame = events.category[thread_rows] == Category.PYTHON
        steps = is_frame & is_step[events.name[thread_rows]]
        others = is_frame & is_other[events.name[thread_rows]]
        states = np.where(steps, UPDATING, OUTSIDE)
        for level in nested.levels()[1:]:
            above = states[nested.parent[level]]
            inherited = np.where((above == UPDATING) & others[level], CALLED, above)
            states[level] = np.where(steps[level], UPDATING, inherited)
        flags[thread_rows] = states == CALLED
    return flags


def _is_step(name: str) -> bool:
    """Whether it is the frame of the step of one of torch's optimizers."""
    match = lines.FRAME.match(name)
    if match is None or match.group("function") != STEP:
        return False
    return f"/{OPTIMIZERS}" in "/" + match.group("file").replace("\\", "/")


def _is_other(name: str) -> bool:
    """Whether it is a frame of neither torch nor Python's library."""
    match = lines.FRAME.match(name)
    if match is None or match.group("function").startswith(OVERRIDES):
        return False
    file = "/" + match.group("file").replace("\\", "/")
    if any(part in file for part in WITHOUT) or (LIBRARY in file and PACKAGES not in file):
        return False
    return file.split("/")[1].removesuffix(".py") not in sys.stdlib_module_names
