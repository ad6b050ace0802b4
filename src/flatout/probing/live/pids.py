"""Whether a process named by a driver is still alive."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import psutil

MACHINES_OWN = 0xEFFFFFFC
"""Inode of the machine's pid namespace, whose numbers drivers use (PROC_PID_INIT_INO)."""


def alive(pid: int) -> bool | None:
    """Whether it lives (a zombie does not), or None in a container, where numbers differ."""
    if not _is_machines_own():
        return None
    if not psutil.pid_exists(pid):
        return False
    with suppress(psutil.Error):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return psutil.pid_exists(pid)


def _is_machines_own() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return Path("/proc/self/ns/pid").stat().st_ino & 0xFFFFFFFF == MACHINES_OWN
    except OSError:
        return False
