"""A GPU's memory is far slower than its data sheet says.

## What it sees

Copy and triad give less than 70 % of the data sheet's bandwidth, and ECC on GDDR memory does not
explain it.

## Why it matters

Most operators of most models are limited by the memory's bandwidth: they are slower by as much.
Healthy GPUs give 80 to 95 %.

## Cure

A memory clock below its maximum: a power state that does not rise, or a card that protects itself.
Look for memory errors; restart the machine; if only one card stays slow, it is faulty.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW030", severity=Severity.WARNING, since="0.2.0")


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for shortfall in shortfalls.memory(benched, machine):
        gpu = shortfall.gpu
        if shortfalls.other_programs(gpu) or (gpu is not None and shortfalls.gddr_with_ecc(gpu)):
            continue
        name = devices.label(gpu) if gpu is not None else shortfall.name[: devices.TITLE]
        look = devices.smi([gpu], "-q -d CLOCK,ECC,ROW_REMAPPER,PERFORMANCE") if gpu else ""
        yield Diagnosis(
            title=f"{name}: {units.share(shortfall.share)} of its data sheet's memory bandwidth",
            evidence=f"{shortfall.figures}{_clock(gpu)}",
            cure=Cure(
                "Look for memory errors and a memory clock that does not rise; restart, measure "
                "again.",
                (look,) if gpu is not None and gpu.vendor == "nvidia" else (),
            ),
        )


def _clock(gpu: Gpu | None) -> str:
    if gpu is None or gpu.clock_memory_mhz is None or gpu.clock_memory_max_mhz is None:
        return ""
    return f"; memory at {gpu.clock_memory_mhz} of {gpu.clock_memory_max_mhz} MHz under load"
