"""A GPU computes far less than its data sheet says, and the driver names no cause.

## What it sees

The best matrix product over all number formats gives less than 55 % of the data sheet's dense peak
(AMD: 40 %), and neither power, heat, fixed clocks nor another program explains it.

## Why it matters

Healthy GPUs give 70 to 95 %. Every training step loses as much.

## Cure

Compare with another torch or driver first: a build without kernels for this GPU falls back to slow
ones. In a virtual machine ask whether the GPU is shared. If only one card stays slow, it is faulty.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
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

CHECK = Check(code="HW028", severity=Severity.WARNING, since="0.2.0")
LOOK = "-q -d PERFORMANCE,POWER,CLOCK,TEMPERATURE"


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for shortfall in shortfalls.compute(benched, machine):
        if shortfalls.explained(shortfall):
            continue
        gpu = shortfall.gpu
        name = devices.label(gpu) if gpu is not None else shortfall.name[: devices.TITLE]
        yield Diagnosis(
            title=f"{name}: {units.share(shortfall.share)} of the peak on its data sheet",
            evidence=f"{shortfall.figures}{_clock(gpu)}; torch {benched.torch}",
            cure=Cure(
                "Look at the driver's state under load, and measure with another torch build.",
                _lines(gpu),
            ),
        )


def _clock(gpu: Gpu | None) -> str:
    if gpu is None or gpu.clock_sm_mhz is None or gpu.clock_sm_max_mhz is None:
        return ""
    return f"; {gpu.clock_sm_mhz} of {gpu.clock_sm_max_mhz} MHz under load"


def _lines(gpu: Gpu | None) -> tuple[str, ...]:
    look = (devices.smi([gpu], LOOK),) if gpu is not None and gpu.vendor == "nvidia" else ()
    return ("flatout doctor --deep", *look)
