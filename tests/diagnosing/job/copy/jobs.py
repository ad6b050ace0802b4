"""Jobs and their parts for the tests of COPY."""

from __future__ import annotations

import dataclasses
from typing import Any

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Copy, Place, Profile, Sync

COPYING = {Kind.COPY: 18.8}
PLAIN = Place("train.py", 81, "train_epoch", "images = images.to(device)")
KWARG = Place("train.py", 81, "train_epoch", "images = images.to(device, non_blocking=True)")


def at(line: int, source: str) -> Place:
    return Place("train.py", line, "train_epoch", source)


def job(copies: tuple[Copy, ...], syncs: tuple[Sync, ...] = (), **changes: Any) -> Profile:
    return made.profile(COPYING, copies=copies, syncs=syncs, **changes)


BATCH = Copy("HtoD", 2.0, 154.1e6, 18.8, pinned=False, exposed_ms=18.8, where=PLAIN)
PINNED = dataclasses.replace(BATCH, pinned=True, ms=6.2, exposed_ms=6.2)
WAITS = Sync("aten::to", 1.0, 6.4, idle_ms=1.5, where=PLAIN)
