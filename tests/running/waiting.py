"""Waiting for what another process does, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

LONG_S = 120.0
"""Only a failed test waits for so long."""


def until(true: Callable[[], object]) -> None:
    """Return once `true()` is."""
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def settled_size(path: Path, still_s: float = 0.4) -> int:
    """Size of a file once nothing has been written to it for `still_s`."""
    sizes = [-1]

    def is_settled() -> bool:
        sizes.append(path.stat().st_size)
        time.sleep(still_s)
        return path.stat().st_size == sizes[-1]

    until(is_settled)
    return sizes[-1]
