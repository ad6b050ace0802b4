"""A boost that is on for a while, and what it says of itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from flatout_agent.boost import Applied
from flatout_agent.job import Job


@contextlib.contextmanager
def switched(boost: Any, target: Any = None, job: Job | None = None) -> Iterator[Applied]:
    """On inside. target: if None, a small model."""
    applied: Applied = boost.apply(job or Job(), nn.Linear(2, 2) if target is None else target, {})
    try:
        yield applied
    finally:
        applied.undo()


def told(applied: Applied) -> tuple[bool, str]:
    """Whether it took hold, and the detail."""
    found = applied.engaged()
    assert found is not None
    return found


def taken(applied: Applied) -> int:
    """The number that its detail begins with; 0 if it did not take hold."""
    took, detail = told(applied)
    return int(detail.split()[0]) if took else 0
