"""The machine's figures without /proc, on macOS and Windows, through psutil."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psutil


def counters() -> dict[str, float]:
    """Growing counters: seconds of all cores, bytes."""
    found: dict[str, float] = {}
    with suppress(psutil.Error, OSError, RuntimeError):
        times = psutil.cpu_times()
        found["cpu_all_s"] = float(sum(times))
        found["cpu_busy_s"] = float(sum(times)) - float(times.idle)
    with suppress(psutil.Error, OSError, RuntimeError):
        disk = psutil.disk_io_counters()
        if disk is not None:
            found |= {"disk_read_bytes": disk.read_bytes, "disk_written_bytes": disk.write_bytes}
    with suppress(psutil.Error, OSError, RuntimeError):
        network = psutil.net_io_counters()
        found["network_received_bytes"] = network.bytes_recv
        found["network_sent_bytes"] = network.bytes_sent
    with suppress(psutil.Error, OSError, RuntimeError):
        found["swap_in_bytes"] = psutil.swap_memory().sin
    return found


def levels() -> dict[str, Any]:
    """Present values, by the names of `MachineSample`."""
    found: dict[str, Any] = {}
    with suppress(psutil.Error, OSError, RuntimeError):
        memory = psutil.virtual_memory()
        found["memory_bytes"] = memory.total
        found["memory_used_bytes"] = memory.total - memory.available
    with suppress(psutil.Error, OSError, RuntimeError):
        found["swap_used_bytes"] = psutil.swap_memory().used
    return found
