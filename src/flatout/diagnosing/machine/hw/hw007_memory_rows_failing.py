"""A GPU's memory has broken rows or pages that wait for a reset or can no longer be replaced.

## What it sees

Rows wait to be remapped or pages to be retired (a warning); remapping failed, or at least 60 pages
are retired (an error).

## Why it matters

A broken row that waits stays in use until the reset: every program that touches it dies. The GPU
has few spare rows; when they are used up, and remapping fails, it must be replaced. A card retires
64 pages at most.

## Cure

Waiting: reset the GPU (or restart the machine) when nothing runs on it. Failed: take the GPU out of
service and have it replaced.

## References

- https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
- https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW007", severity=Severity.ERROR, since="0.2.0")
MANY_PAGES = 60
"""Retired pages that are many; 64 can be retired."""


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for failing GPUs, one for those that only need a reset."""
    failing = [gpu for gpu in machine.gpus or () if _fails(gpu)]
    waiting = [gpu for gpu in machine.gpus or () if gpu.retirement_pending and not _fails(gpu)]
    if failing:
        yield Diagnosis(
            title=f"{devices.subject(failing)}: memory can no longer be repaired",
            evidence=devices.facts(failing, _facts),
            cure=Cure(
                "Take the GPU out of service and have it replaced; keep this report for the maker.",
                devices.settings(machine, ["nvidia-bug-report.sh"]),
            ),
        )
    if waiting:
        yield Diagnosis(
            title=f"{devices.subject(waiting)}: broken memory waits for a reset",
            evidence=devices.facts(waiting, _facts),
            cure=Cure(
                "End what runs on it and reset the GPU; restart the machine where that is refused.",
                devices.settings(machine, [devices.smi(waiting, "--gpu-reset")]),
            ),
            severity=Severity.WARNING,
        )


def _fails(gpu: Gpu) -> bool:
    return gpu.row_remap_failed is True or (gpu.retired_pages or 0) >= MANY_PAGES


def _facts(gpu: Gpu) -> str:
    parts = {
        "a row could not be remapped": gpu.row_remap_failed,
        "rows or pages wait for a reset": gpu.retirement_pending,
        f"{gpu.retired_pages} pages retired (64 at most)": bool(gpu.retired_pages),
    }
    return ", ".join(text for text, true in parts.items() if true)
