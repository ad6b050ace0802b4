"""Other programs used the processor while its ceilings were measured.

## What it sees

Just before the measurement began, other programs used a fifth of the machine's cores or more. Not
checked if this process has only some of the cores: the others may be busy.

## Why it matters

The figures of the CPU (matrix products, memory, JPEG) show only the remaining capacity, as do
launch latency and rate of a GPU: they are below this hardware's maximum.

## Cure

Measure again when nothing else runs, or read the figures as the capacity left for training now.

## References

- https://psutil.readthedocs.io/en/latest/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW042", severity=Severity.NOTE, since="0.2.0")
MUCH = 0.2


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding."""
    cpu = machine.cpu
    if benched.busy is None or benched.busy < MUCH or cpu.cores != cpu.logical_cores:
        return
    look = "top -o cpu" if machine.system.name == "Darwin" else "top"
    yield Diagnosis(
        title=f"other programs used {units.share(benched.busy)} of the cores",
        evidence=f"{units.share(benched.busy)} of {cpu.logical_cores or 'all'} cores were in use "
        "just before the measurement",
        cure=Cure(
            "See what runs, and measure again when it has ended.",
            () if machine.system.name == "Windows" else (look,),
        ),
    )
