"""A GPU reports a hardware error.

## What it sees

Immediately: an Xid error of the driver, a memory error that ECC could not correct, or rows or
pages waiting to be retired. Xids that ordinary errors of a program cause (13, 31, 43, 45) are left
out: the program ends with them and reports them.

## Why it matters

Results may be wrong, or the GPU stops working in the middle of the run.

## Cure

Look the Xid up in NVIDIA's list. Save, end the job and reset the GPU; if it happens again, have
the GPU replaced.

## References

- https://docs.nvidia.com/deploy/xid-errors/index.html
- https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.nouns.finding import Cure, Severity
from flatout.watching.rules import Breach, Rule, View

RULE = Rule(code="FAULT001", severity=Severity.ERROR, since="0.2.0")
OF_PROGRAMS = frozenset({13, 31, 43, 45})
"""Xids that a program's own error causes."""


def check(view: View) -> Iterator[Breach]:
    """One breach for each kind of error on each GPU."""
    if view.job is not None or view.latest is None:
        return
    for gpu in view.latest.gpus:
        subject = f"GPU {gpu.index}"
        xids = [xid for xid in gpu.xids if xid not in OF_PROGRAMS]
        if xids:
            yield Breach(
                title=f"GPU {gpu.index} reports Xid {xids[-1]}",
                evidence="Xid errors so far: " + ", ".join(map(str, xids)),
                cure=Cure("Look it up in NVIDIA's list of Xid errors.", ("flatout doctor",)),
                subject=f"{subject} Xid {xids[-1]}",
            )
        counts = (
            other.ecc_uncorrected
            for sample in view.machine
            for other in sample.gpus
            if other.index == gpu.index and other.ecc_uncorrected is not None
        )
        before = next(counts, None)  # when it was first seen
        if gpu.ecc_uncorrected and before is not None and gpu.ecc_uncorrected > before:
            more = gpu.ecc_uncorrected - before
            yield Breach(
                title=f"GPU {gpu.index} has memory errors that could not be corrected",
                evidence=f"{more} while watched, {gpu.ecc_uncorrected} since its driver began",
                cure=Cure("End the job, reset the GPU, and train on from the last checkpoint."),
                subject=f"{subject} ECC",
            )
        if gpu.remap_pending:
            yield Breach(
                title=f"GPU {gpu.index} waits for a reset to take bad memory out of use",
                evidence="rows to be remapped, or pages to be retired, are pending",
                cure=Cure(
                    "Reset it when the job has ended.", (f"nvidia-smi --gpu-reset -i {gpu.index}",)
                ),
                subject=f"{subject} remap",
                severity=Severity.WARNING,
            )
