"""Whether a device is the model that was named."""

from __future__ import annotations

from flatout.knowledge import gpus
from flatout.nouns.ceiling import Device


def is_expected(device: Device, expected: str) -> bool:
    """The device is of that model or family."""
    meant = gpus.find(expected, device.memory_bytes)
    seen = gpus.find(device.name, device.memory_bytes) if device.name else None
    return meant is not None and seen is not None and bool(set(meant.names) & set(seen.names))
