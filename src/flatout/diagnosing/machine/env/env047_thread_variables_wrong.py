"""A variable sets the number of CPU threads far below, or above, the number of cores.

## What it sees

OMP_NUM_THREADS and MKL_NUM_THREADS against the cores that this process may use; on a machine with
several GPUs against each one's share of them.

## Why it matters

With one thread, operations on the processor (a whole training on CPU, or the data's preparation)
use one core. With more threads than cores they take turns, which is slower than fewer.

## Cure

Unset it: torch takes one thread for each physical core. torchrun sets 1 itself where it is unset;
there set cores divided by ranks.

## References

- https://pytorch.org/docs/stable/notes/multiprocessing.html#cpu-in-multiprocessing
- https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV047", severity=Severity.WARNING, since="0.2.0")
NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
FAR_UNDER = 4
"""Fewer threads than the cores divided by this are called far too few."""


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each variable; too few threads is a note if a GPU does the work."""
    cores = machine.cpu.cores
    if cores is None or machine.gpus is None:
        return
    gpus = [gpu for vendor in ("nvidia", "amd") for gpu in software.capable(machine, vendor)]
    real = min(cores, machine.cpu.physical_cores or cores)
    share = max(1, real // max(1, len(gpus)))
    for name in NAMES:
        value = software.variable(machine, name)
        wrong = _wrong(value, cores, share) if value is not None else None
        if wrong is None:
            continue
        per_gpu = f", {share} for each of {len(gpus)} GPUs" if len(gpus) > 1 else ""
        ranks = f" With one rank for each GPU set {share}." if len(gpus) > 1 else ""
        few = wrong == "far fewer threads than cores"
        yield Diagnosis(
            title=f"{name}={value}: {wrong} ({cores})",
            evidence=f"{name}={value}; this process may use {cores} cores{per_gpu}",
            cure=Cure(
                f"Unset it: torch takes the physical cores by itself.{ranks}",
                system_packages.variable(target.of(machine), name, None),
            ),
            severity=Severity.NOTE if few and gpus else None,
        )


def _wrong(value: str, cores: int, share: int) -> str | None:
    first = value.partition(",")[0].strip()  # OpenMP allows one number for each level
    if not first.isdecimal() or int(first) == 0:
        return "not a number of threads"
    threads = int(first)
    if threads > cores:
        return "more threads than cores"
    return "far fewer threads than cores" if threads * FAR_UNDER < share else None
