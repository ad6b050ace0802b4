"""A GPU's memory had errors that its error correction could not correct.

## What it sees

Uncorrected ECC errors since the driver was loaded: an error. Only earlier in the card's life: a
note.

## Why it matters

The program that read the broken word was ended (Xid 48, 94 or 95: "uncorrectable ECC error
encountered"). A few in years happen; more of them mean that the memory fails.

## Cure

Save running work, reset the GPU so that the broken rows are replaced, and test it. If the errors
come again: have the card replaced.

## References

- https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
- https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW006", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for present errors, one for past errors."""
    present = [gpu for gpu in machine.gpus or () if gpu.ecc_uncorrected]
    past = [
        gpu
        for gpu in machine.gpus or ()
        if gpu.ecc_uncorrected == 0 and gpu.ecc_uncorrected_lifetime
    ]
    if present:
        yield Diagnosis(
            title=f"{devices.subject(present)}: uncorrected memory errors",
            evidence=devices.facts(present, _facts),
            cure=Cure(
                "End what runs on it, reset the GPU, and run the diagnosis. If errors come again, "
                "have the card replaced.",
                devices.settings(machine, _lines(present)),
            ),
        )
    if past:
        yield Diagnosis(
            title=f"{devices.subject(past)}: had uncorrected memory errors in the past",
            evidence=devices.facts(past, _facts),
            cure=Cure(
                "Nothing now; watch whether the number grows.", (devices.smi(past, "-q -d ECC"),)
            ),
            severity=Severity.NOTE,
        )


def _facts(gpu: Gpu) -> str:
    parts = [f"{gpu.ecc_uncorrected} since the driver was loaded"]
    if gpu.ecc_uncorrected_lifetime is not None:
        parts.append(f"{gpu.ecc_uncorrected_lifetime} in its lifetime")
    if gpu.retired_pages:
        parts.append(f"{gpu.retired_pages} pages retired")
    return ", ".join(parts)


def _lines(gpus: list[Gpu]) -> list[str]:
    return [
        devices.smi(gpus, "-q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"),
        devices.smi(gpus, "--gpu-reset"),
        "dcgmi diag -r 3  # of datacenter-gpu-manager",
    ]
