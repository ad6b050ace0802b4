"""The clock for the time that measuring may take; it stops while something is prepared.

Loading a library, drawing operands and compiling a kernel happen once and may take seconds: they
would eat the time of the measurements.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class _Stopwatch:
    def __init__(self) -> None:
        self.stood_s, self.depth = 0.0, 0


_watch = _Stopwatch()


def now() -> float:
    """Seconds on this clock; only differences mean something."""
    return time.perf_counter() - _watch.stood_s


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """Code within it takes none of the measuring time."""
    began = time.perf_counter()
    _watch.depth += 1
    try:
        yield
    finally:
        _watch.depth -= 1
        if not _watch.depth:  # nested ones count once
            _watch.stood_s += time.perf_counter() - began
