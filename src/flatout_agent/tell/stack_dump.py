"""Let a watcher ask this process for its stacks, even when it hangs in C or holds the GIL.

`faulthandler` writes them from a signal handler of its own: it needs no thread and no Python.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from typing import Any

_files: list[Any] = []
"""Files kept open, as the handler writes to their descriptors."""


def install(path: str) -> int:
    """Write all threads' stacks to `path` at a free signal; returns its number, or 0."""
    if sys.platform == "win32":
        return 0
    number = _free_signal()
    if not number:
        return 0
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
        faulthandler.register(number, file=file, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError):
        return 0
    _files.append(file)
    return number


def _free_signal() -> int:
    """A real-time signal that nothing in this process handles, or 0 if there is none.

    The last ones are left to profilers and sanitizers.
    """
    if sys.platform != "linux":
        return 0
    for number in range(signal.SIGRTMAX - 4, signal.SIGRTMIN + 2, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            return int(number)
    return 0
