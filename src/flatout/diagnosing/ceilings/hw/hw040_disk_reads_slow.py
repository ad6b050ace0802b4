"""The disk of this folder reads slowly.

## What it sees

One reader gets less than 0.15 GB/s from a large file in this folder.

## Why it matters

1,000 pictures of 110 KB a second are 0.11 GB/s: data on this disk that does not fit into memory
keeps training waiting.

## Cure

Keep the data on a local solid-state disk, or pack small files into large ones; several workers help
on network disks, which mostly wait.

## References

- https://docs.pytorch.org/docs/stable/data.html
- https://docs.kernel.org/block/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Disk, Machine

CHECK = Check(code="HW040", severity=Severity.NOTE, since="0.2.0")
SLOW_GB_PER_S = 0.15


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding."""
    reading = next((ceiling for ceiling in benched.ceilings if ceiling.id == "disk-read"), None)
    if reading is None or reading.value is None or reading.value >= SLOW_GB_PER_S:
        return
    work_disk = next((disk for disk in machine.disks or () if disk.use == "work"), None)
    rates = ", ".join(f"{point.size}: {point.value:.3g} GB/s" for point in reading.curve)
    yield Diagnosis(
        title=f"disk of this folder: {reading.value * 1000:.0f} MB/s for one reader",
        evidence=f"{rates}{_kind(work_disk)}",
        cure=Cure("Keep training data on a local solid-state disk, packed into large files."),
    )


def _kind(disk: Disk | None) -> str:
    if disk is None:
        return ""
    parts = [
        disk.file_system or "",
        "over the network" if disk.network else "",
        "a hard disk" if disk.rotational else "",
    ]
    return "".join(f"; {part}" for part in parts if part)
