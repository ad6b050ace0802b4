"""What a healthy device gives, and one check of ceilings over what was changed of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from flatout.diagnosing import checks
from flatout.diagnosing.diagnose import diagnose_benched
from flatout.nouns.ceiling import Benched, Ceiling, Device, Point
from flatout.nouns.finding import Finding, Severity
from flatout.nouns.identity import Identity
from flatout.nouns.machine import Machine

SHEETS = {
    "matmul-bf16": (312.0, "TFLOP/s"),
    "copy-device": (2039.0, "GB/s"),
    "copy-host-to-device-pinned": (31.5, "GB/s"),
}
"""NVIDIA A100-SXM4-80GB."""
HEALTHY = {
    "matmul-bf16": 0.86,
    "copy-device": 0.9,
    "copy-host-to-device-pinned": 0.83,
    "launch-rate": 180_000.0,
}
IDENTITY = Identity("Linux", "AMD EPYC 7742", 128, 2**40)


def benched(machine: Machine, **changes: Any) -> Benched:
    """Each GPU of the machine gives `HEALTHY`: shares of the data sheet, or values without one."""
    gpus = machine.gpus or ()
    devices = tuple(
        Device(f"cuda:{n}", gpu.name, gpu.memory_bytes, gpu.uuid) for n, gpu in enumerate(gpus)
    )
    rows = tuple(
        row(name, device.device, share) for device in devices for name, share in HEALTHY.items()
    )
    found = Benched(IDENTITY, "2.9.1+cu128", rows, (), devices=devices)
    return dataclasses.replace(found, **changes)


def row(name: str, device: str, share: float) -> Ceiling:
    sheet, unit = SHEETS.get(name, (None, "launches/s"))
    value = share if sheet is None else share * sheet
    return Ceiling(name, name, device, value, unit, sheet, "8192", (Point("8192", value),))


def giving(found: Benched, name: str, share: float, devices: Sequence[str] = ()) -> Benched:
    """The same with another share of the data sheet, on all devices or on these."""
    changed = tuple(
        row(name, one.device, share)
        if one.id == name and (not devices or one.device in devices)
        else one
        for one in found.ceilings
    )
    return dataclasses.replace(found, ceilings=changed)


def with_rows(found: Benched, *rows: Ceiling) -> Benched:
    return dataclasses.replace(found, ceilings=(*found.ceilings, *rows))


def findings(code: str, found: Benched, machine: Machine) -> tuple[Finding, ...]:
    """All of this one check; a check that fails is a failed test."""
    file = checks.find(code)
    assert file is not None
    told = diagnose_benched(found, machine, [checks.CEILINGS.load(file.id)])
    assert all(item.severity is not Severity.UNCHECKED for item in told), told
    for item in told:
        text = f"{item.title} {item.evidence} {item.cure.text}"
        assert "None" not in text
        assert 10 <= len(item.title) <= 100, item.title
    return told


def only(code: str, found: Benched, machine: Machine) -> Finding:
    """Its one finding."""
    (finding,) = findings(code, found, machine)
    return finding


def codes(found: Benched, machine: Machine) -> list[str]:
    """Of all checks together."""
    return [item.code for item in diagnose_benched(found, machine)]
