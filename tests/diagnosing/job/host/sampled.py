"""Profiles of a CPU job with sampled stacks: 100 ms a step, 20 sampled steps."""

from __future__ import annotations

import dataclasses
from typing import Any

from diagnosing.job import made
from flatout.nouns.host_time import HostKind, HostLine, HostThread, HostTime
from flatout.nouns.place import Place
from flatout.nouns.profile import Profile

STEP_MS = made.cpu_profile().anatomy.step_ms
SOURCES = {10: "loss.backward()", 14: "mask[i][j] = 1.0", 20: "f1 = f1_score(y, p)"}


def line(number: int, kind: HostKind, ms: float, **fields: Any) -> HostLine:
    """A line of train.py, with enough samples for its time."""
    place = Place("train.py", number, fields.pop("function", "train"), SOURCES.get(number, ""))
    fields.setdefault("samples", max(1, round(ms * 5)))
    return HostLine(place, kind, ms, **fields)


def profile(*lines: HostLine, threads: tuple[HostThread, ...] = (), **fields: Any) -> Profile:
    """With these lines of the host's."""
    base = made.cpu_profile()
    fields.setdefault("step_ms", base.anatomy.step_ms)
    host = HostTime(20, lines=lines, threads=threads, idle_known=True, **fields)
    return dataclasses.replace(base, host=host)
