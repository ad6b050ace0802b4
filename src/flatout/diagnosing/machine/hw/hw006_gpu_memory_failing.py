"""A GPU's memory has uncorrected errors, or broken rows that wait for a reset or stay broken.

## What it sees

- Uncorrected ECC errors since the driver was loaded: an error. Only earlier in the card's life: a
  note.
- Remapping of a row failed, or at least 60 pages are retired: an error. Rows wait to be remapped or
  pages to be retired: a warning.

## Why it matters

The program that read the broken word was ended (Xid 48, 94 or 95: "uncorrectable ECC error
encountered"). A few in years happen; more of them mean that the memory fails. A broken row that
waits stays in use until the reset: every program that touches it dies. The GPU has few spare rows,
and retires 64 pages at most; when they are used up, and remapping fails, it must be replaced.

## Cure

Errors or waiting rows: save running work and reset the GPU (or restart the machine), so that the
broken rows are replaced; then test it. If errors come again, or remapping failed: take the GPU out
of service and have it replaced.

## References

- https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
- https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html
- https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW006", severity=Severity.ERROR, since="0.2.0")
MANY_PAGES = 60
"""Retired pages that are many; 64 can be retired."""


@dataclass(frozen=True)
class MemoryState:
    """One state of a GPU's memory, and what to do."""

    shows: Callable[[Gpu], bool]
    severity: Severity
    title: str
    facts: Callable[[Gpu], str]
    cure: str
    smi: tuple[str, ...] = ()
    """Options of nvidia-smi for these GPUs."""
    commands: tuple[str, ...] = ()


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs of each state."""
    for state in STATES:
        gpus = [gpu for gpu in machine.gpus or () if state.shows(gpu)]
        if gpus:
            lines = (*(devices.smi(gpus, options) for options in state.smi), *state.commands)
            look_only = state.severity is Severity.NOTE
            yield Diagnosis(
                title=f"{devices.subject(gpus)}: {state.title}",
                evidence=devices.facts(gpus, state.facts),
                cure=Cure(state.cure, lines if look_only else devices.settings(machine, lines)),
                severity=state.severity,
            )


def _fails(gpu: Gpu) -> bool:
    return gpu.row_remap_failed is True or (gpu.retired_pages or 0) >= MANY_PAGES


def _errors(gpu: Gpu) -> str:
    parts = [f"{gpu.ecc_uncorrected} since the driver was loaded"]
    if gpu.ecc_uncorrected_lifetime is not None:
        parts.append(f"{gpu.ecc_uncorrected_lifetime} in its lifetime")
    if gpu.retired_pages:
        parts.append(f"{gpu.retired_pages} pages retired")
    return ", ".join(parts)


def _rows(gpu: Gpu) -> str:
    parts = {
        "a row could not be remapped": gpu.row_remap_failed,
        "rows or pages wait for a reset": gpu.retirement_pending,
        f"{gpu.retired_pages} pages retired (64 at most)": bool(gpu.retired_pages),
    }
    return ", ".join(text for text, true in parts.items() if true)


STATES = (
    MemoryState(
        lambda gpu: bool(gpu.ecc_uncorrected),
        Severity.ERROR,
        "uncorrected memory errors",
        _errors,
        "End what runs on it, reset the GPU, and run the diagnosis. If errors come again, have the "
        "card replaced.",
        smi=("-q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT", "--gpu-reset"),
        commands=("dcgmi diag -r 3  # of datacenter-gpu-manager",),
    ),
    MemoryState(
        lambda gpu: gpu.ecc_uncorrected == 0 and bool(gpu.ecc_uncorrected_lifetime),
        Severity.NOTE,
        "had uncorrected memory errors in the past",
        _errors,
        "Nothing now; watch whether the number grows.",
        smi=("-q -d ECC",),
    ),
    MemoryState(
        _fails,
        Severity.ERROR,
        "memory can no longer be repaired",
        _rows,
        "Take the GPU out of service and have it replaced; keep this report for the maker.",
        commands=("nvidia-bug-report.sh",),
    ),
    MemoryState(
        lambda gpu: bool(gpu.retirement_pending) and not _fails(gpu),
        Severity.WARNING,
        "broken memory waits for a reset",
        _rows,
        "End what runs on it and reset the GPU; restart the machine where that is refused.",
        smi=("--gpu-reset",),
    ),
)
