"""`FLATOUT_LIVE=1` in the environment: `flatout.live()` without a line in the program.

`flatout env hook` puts a file into an environment that calls `wait` at each start of its Python.
"""

from __future__ import annotations

import os

from flatout_agent import training_awaited

STARTED_BY_FLATOUT = "FLATOUT_ORDERS"
"""As `flatout_agent.wire` has it; to import that would take most of the time of this."""

_waits = False


def wait() -> None:
    """Call `flatout.live()` once this process trains. Until then nothing is said or written."""
    global _waits
    if not (_waits or os.environ.get(STARTED_BY_FLATOUT)):
        _waits = True  # a folder of packages may be on the path under two names
        training_awaited.before_training(_begin)


def _begin() -> None:
    from flatout.reporting.harmless import harmless

    with harmless("FLATOUT_LIVE=1 has no effect"):
        from flatout.in_process import live

        if not live.was_called():
            live.live()
