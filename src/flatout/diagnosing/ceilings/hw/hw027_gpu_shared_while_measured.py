"""Another program was on a GPU while it was measured.

## What it sees

A GPU gives far less than its data sheet says, and a program with memory on it was there before the
measurement began.

## Why it matters

The figures show only the remaining capacity. Training beside that program will be just as slow, and
may run out of memory.

## Cure

Wait for them, end them if they are yours, or choose another GPU; then measure again.

## References

- https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW027", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
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
