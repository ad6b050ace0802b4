"""Whether a device is the expected model."""

from __future__ import annotations

from flatout.knowledge import gpus
from flatout.nouns.ceiling import Device


def is_expected(device: Device, expected: str) -> bool:
    """Whether the device is of that model or family."""
    model = gpus.find(expected, device.memory_bytes)
    device_model = gpus.find(device.name, device.memory_bytes) if device.name else None
    return (
        model is not None
        and device_model is not None
        and bool(set(model.names) & set(device_model.names))
    )
