"""A GPU's memory is far slower than its data sheet says.

## What it sees

Copy and triad give less than 70 % of the data sheet's bandwidth. If ECC is on and the card has GDDR
memory, that explains it, and it is a note: there the check bits share the data bus. HBM has extra
lines for them.

## Why it matters

Most operators of most models are limited by the memory's bandwidth (elementwise operators,
normalisation, optimizers): they are slower by as much. Healthy GPUs give 80 to 95 %. ECC costs 5 to
15 %, sometimes more.

## Cure

Keep ECC if a wrong bit must not go unnoticed: that is its purpose. Otherwise it can be switched
off, which needs a GPU reset.

Without ECC: a memory clock below its maximum means a power state that does not rise, or a card that
protects itself. Look for memory errors; restart the machine; if only one card stays slow, it is
faulty.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
- https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.ceilings.hw.shortfalls import Shortfall
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.knowledge import gpus
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW029", severity=Severity.WARNING, since="0.2.0")
GDDR_GB_PER_S = 1100
"""Data center and workstation cards below this have GDDR, the others HBM."""


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU."""
    for shortfall in shortfalls.memory(benched, machine):
        gpu = shortfall.gpu
        if gpu is not None and _gddr_with_ecc(gpu):
            yield _ecc(machine, shortfall, gpu)
        elif not shortfalls.other_programs(gpu):
            yield _unexplained(shortfall, gpu)


def _gddr_with_ecc(gpu: Gpu) -> bool:
    """Whether ECC is on and its bits travel with the data: the bandwidth is too low for HBM."""
    model = gpus.find(gpu.name, gpu.memory_bytes) if gpu.name else None
    bandwidth = model.bandwidth_gb_per_s if model else None
    return gpu.ecc is True and bandwidth is not None and bandwidth < GDDR_GB_PER_S


def _ecc(machine: Machine, shortfall: Shortfall, gpu: Gpu) -> Diagnosis:
    return Diagnosis(
        title=f"{shortfall.label}: {units.share(shortfall.share)} of its bandwidth, ECC on",
        evidence=f"{shortfall.figures}; ECC is on",
        cure=Cure(
            "Keep ECC, or switch it off where a wrong bit is acceptable; this needs a GPU reset.",
            devices.settings(machine, [f"# {devices.smi([gpu], '-e 0')}"]),
        ),
        severity=Severity.NOTE,
    )


def _unexplained(shortfall: Shortfall, gpu: Gpu | None) -> Diagnosis:
    share = units.share(shortfall.share)
    look = "-q -d CLOCK,ECC,ROW_REMAPPER,PERFORMANCE"
    nvidia = [gpu] if gpu is not None and gpu.vendor == "nvidia" else []
    return Diagnosis(
        title=f"{shortfall.label}: {share} of its data sheet's memory bandwidth",
        evidence=f"{shortfall.figures}{_clock(gpu)}",
        cure=Cure(
            "Look for memory errors and a memory clock that does not rise; restart, measure again.",
            (devices.smi(nvidia, look),) if nvidia else (),
        ),
    )


def _clock(gpu: Gpu | None) -> str:
    if gpu is None or gpu.clock_memory_mhz is None or gpu.clock_memory_max_mhz is None:
        return ""
    return f"; memory at {gpu.clock_memory_mhz} of {gpu.clock_memory_max_mhz} MHz under load"
