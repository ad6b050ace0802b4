"""ECC takes memory bandwidth from a GPU that has no memory of its own for it.

## What it sees

The bandwidth of the device's memory is far below the data sheet, ECC is on, and the card has GDDR
memory: there the check bits share the data bus. HBM has extra lines for them.

## Why it matters

It costs 5 to 15 % of the bandwidth, sometimes more, in all that is limited by memory: elementwise
operators, normalisation, optimizers.

## Cure

Keep it if a wrong bit must not go unnoticed: that is its purpose. Otherwise it can be switched off,
which needs a GPU reset.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW029", severity=Severity.NOTE, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for shortfall in shortfalls.memory(benched, machine):
        gpu = shortfall.gpu
        if gpu is None or not shortfalls.gddr_with_ecc(gpu):
            continue
        yield Diagnosis(
            title=f"{devices.label(gpu)}: {units.share(shortfall.share)} of its bandwidth, ECC on",
            evidence=f"{shortfall.figures}; ECC is on",
            cure=Cure(
                "Keep ECC, or switch it off where a wrong bit is acceptable; this needs a GPU "
                "reset.",
                devices.settings(machine, [f"# {devices.smi([gpu], '-e 0')}"]),
            ),
        )
