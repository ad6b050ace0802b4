"""End the program at once, when what it was started for is there."""

from __future__ import annotations

import multiprocessing
import os
import sys

from flatout_agent.tell.recorder import Recorder


def children_started() -> int:
    """Processes started through `multiprocessing` so far; 0 where that cannot be told."""
    counter = getattr(multiprocessing.process, "_process_counter", None)
    try:
        return int(repr(counter).removeprefix("count(").removesuffix(")")) - 1
    except ValueError:
        return 0


def end_process(recorder: Recorder) -> None:
    """Does not return. Nothing of the program is wanted any more, its clean-up least of all."""
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        recorder.safely("flush", stream.flush)
    os._exit(0)
