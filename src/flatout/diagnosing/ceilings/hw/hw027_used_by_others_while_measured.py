"""Other programs used a GPU, or the processor, while it was measured.

## What it sees

- A GPU gives far less than its data sheet says, and a program with memory on it was there before
  the measurement began.
- Just before the measurement began, other programs used a fifth of the machine's cores or more: a
  note. Not checked if this process has only some of the cores: the others may be busy.

## Why it matters

The figures show only the remaining capacity: the GPU's, or the CPU's (matrix products, memory,
JPEG) with a GPU's launch latency and rate. Training beside a program on the GPU will be just as
slow, and may run out of memory.

## Cure

Wait for them, end them if they are yours, or choose another GPU; then measure again. Or read the
figures as the capacity left for training now.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://psutil.readthedocs.io/en/latest/
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW027", severity=Severity.WARNING, since="0.2.0")
MUCH = 0.2
"""Share of the cores."""


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU, and a note for the processor."""
    yield from _on_gpus(benched, machine)
    yield from _on_cores(benched, machine)


def _on_gpus(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    reported: set[str] = set()
    measures = (shortfalls.compute, shortfalls.memory, shortfalls.pcie)
    for shortfall in itertools.chain.from_iterable(
        measure(benched, machine) for measure in measures
    ):
        programs, gpu = shortfalls.other_programs(shortfall.gpu), shortfall.gpu
        if gpu is None or not programs or shortfall.ceiling.device in reported:
            continue
        reported.add(shortfall.ceiling.device)
        yield Diagnosis(
            title=f"{devices.label(gpu)}: another program was on it while it was measured",
            evidence=f"{shortfall.figures}; {', '.join(programs[:4])}",
            cure=Cure(
                "Wait for them, end them if they are yours, or take another GPU; measure again.",
                ("flatout bench --quick",),
            ),
        )


def _on_cores(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
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
        severity=Severity.NOTE,
    )
