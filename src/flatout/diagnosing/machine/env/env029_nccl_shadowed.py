"""Another NCCL may shadow the one that torch brings.

## What it sees

LD_PRELOAD or LD_LIBRARY_PATH leads to a libnccl.so.2 of another version than torch's own.

## Why it matters

All NCCL 2 releases share one file name, so the first one that is loaded serves the whole process.
LD_PRELOAD always wins. LD_LIBRARY_PATH wins for builds of torch that do not bring NCCL as a wheel
(conda, built from source), and for any library that loads NCCL before torch does. An older NCCL
ends in "undefined symbol: ncclCommRegister" and the like; ranks with different ones hang. With
pip's wheels LD_LIBRARY_PATH does not affect torch itself: then this is a note.

## Cure

Remove it from the variable, on every machine of the job. Keep it where it is intended (a vendor's
build for its own network).

## References

- https://github.com/pytorch/pytorch/issues/119072
- https://github.com/pytorch/builder/pull/1150
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV029", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the first foreign NCCL; a note if torch's own path comes first."""
    torch = machine.torch
    if torch is None or software.cuda_of(torch) is None:
        return
    wheel = software.brought(machine, "nccl")
    own = wheel or torch.nccl
    for library, name in software.foreign_libraries(machine, "nccl"):
        if not software.differ(library.version, own):
            continue
        own_first = name == "LD_LIBRARY_PATH" and wheel is not None
        yield Diagnosis(
            title=f"NCCL {library.version} in {name} competes with torch's {own}",
            evidence=f"{library.path} is {library.version}; torch brings {own}",
            cure=Cure(
                f"Remove it from {name}, on every machine of the job.",
                software.without_folder(machine, name, library),
            ),
            severity=Severity.NOTE if own_first else None,
        )
        return
