"""Jobs and their parts for the tests of DATA."""

from __future__ import annotations

from typing import Any

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place, Profile

WAITING = {Kind.WAIT_DATA: 260.0}


def few(workers: int, busy_ms: float | None, **changes: Any) -> Profile:
    """A job that waits 60 of 160 ms for `workers` workers, busy for `busy_ms` together."""
    profile = made.profile({Kind.WAIT_DATA: 60.0}, job__loaders__0__num_workers=workers)
    seconds = None if busy_ms is None else busy_ms / 1000
    return made.changed(profile, seen__worker_cpu_s=seconds, **changes)


COLLATE = Place("data.py", 52, "pad_collate", "batch[i, : len(x)] = x")
