"""The device is not the one that `--expect` names.

## What it sees

`flatout bench --expect MODEL` was called, and torch sees no GPU, or one of another model.

## Why it matters

A job that was sized for one GPU runs on another, or on the CPU: slower, out of memory, or both.

## Cure

Without any GPU, `flatout doctor` explains why torch sees none. With another model, ask for the
right machine.

## References

- https://docs.pytorch.org/docs/stable/cuda.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.knowledge import gpus
from flatout.nouns.ceiling import Benched, Device
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW041", severity=Severity.ERROR, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all devices of another model."""
    if benched.expected is None:
        return
    wrong = [device for device in benched.devices if not _is_expected(device, benched.expected)]
    if benched.devices and not wrong:
        return
    names = dict.fromkeys(device.name or device.device for device in wrong)
    found_names = ", ".join(names) or "no GPU"
    yield Diagnosis(
        title=f"expected {benched.expected}, found {found_names[:60]}",
        evidence=f"--expect {benched.expected}; torch {benched.torch} sees {found_names}",
        cure=Cure(
            "Ask for the right machine; where there should be a GPU, see why torch sees none.",
            ("flatout doctor",),
        ),
    )


def _is_expected(device: Device, expected: str) -> bool:
    """Whether the device is of that model or family."""
    model = gpus.find(expected, device.memory_bytes)
    device_model = gpus.find(device.name, device.memory_bytes) if device.name else None
    return (
        model is not None
        and device_model is not None
        and bool(set(model.names) & set(device_model.names))
    )
