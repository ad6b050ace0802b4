"""A GPU's clocks are limited to less than it can do.

## What it sees

The driver names applications_clocks_setting as a reason for lower clocks; or one GPU's maximum
clock is at least 5 % lower than that of other GPUs of the same model.

## Why it matters

Speed falls with the clock. Locked clocks are useful for benchmarks, and often forgotten afterwards.

## Cure

Let the driver choose the clocks again.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import causes, devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import throttles
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW017", severity=Severity.WARNING, since="0.2.0")
TOLERATED = 0.95


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs with limited clocks."""
    gpus = machine.gpus_of("nvidia")
    limited = [gpu for gpu in gpus if causes.reasons(gpu, throttles.SETTINGS) or _behind(gpu, gpus)]
    if not limited:
        return
    yield Diagnosis(
        title=f"{devices.subject(limited)}: clocks are limited by a setting",
        evidence=devices.facts(limited, lambda gpu: _facts(gpu, gpus)),
        cure=Cure(
            "Let the driver choose the clocks again: -rgc undoes locked clocks, -rac application "
            "clocks.",
            devices.settings(machine, causes.free_clocks(limited)),
        ),
    )


def _best(gpu: Gpu, gpus: tuple[Gpu, ...]) -> int:
    alike = [peer for peer in gpus if peer.name == gpu.name and gpu.name is not None]
    return max((peer.clock_sm_max_mhz or 0 for peer in alike), default=0)


def _behind(gpu: Gpu, gpus: tuple[Gpu, ...]) -> bool:
    most = gpu.clock_sm_max_mhz
    return most is not None and most <= TOLERATED * _best(gpu, gpus)


def _facts(gpu: Gpu, gpus: tuple[Gpu, ...]) -> str:
    parts = list(causes.reasons(gpu, throttles.SETTINGS))
    if gpu.clock_sm_mhz is not None:
        parts.append(f"{gpu.clock_sm_mhz} MHz now")
    if gpu.clock_sm_max_mhz is not None:
        parts.append(f"{gpu.clock_sm_max_mhz} MHz at most")
    if _behind(gpu, gpus):
        parts.append(f"its peers {_best(gpu, gpus)} MHz")
    return ", ".join(parts)
