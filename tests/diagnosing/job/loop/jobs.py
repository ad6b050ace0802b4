"""Jobs and their parts for the tests of LOOP."""

from __future__ import annotations

from typing import Any

from diagnosing.job.made import cpu_profile
from flatout.nouns.profile import Profile
from flatout_agent.wire import CallSeen


def calling(name: str, s: float, calls: float = 1.0, **facts: Any) -> Profile:
    """A job on a CPU, 300 ms a step, that makes this call."""
    call = CallSeen(name, calls, s, "train.py:90", **facts)
    return cpu_profile(seen__calls=(call,))
