"""A GPU's power limit is set below its default.

## What it sees

The power limit is at least 5 % below the limit that the card has by default. On a laptop it is a
note: on battery, or in a quiet profile, the laptop lowers it by itself.

## Why it matters

Under full load the clocks fall until the power fits. The limit was set on purpose (heat, noise, a
weak power supply) or forgotten; training loses up to the same share of speed.

## Cure

Restore the default, unless the limit is intended. The setting does not survive a restart.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import causes, devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW003", severity=Severity.WARNING, since="0.2.0")
LAPTOP = "Plug the laptop in and choose its profile for performance; the driver cannot set this."


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs with a lowered limit."""
    capped = [gpu for gpu in machine.gpus or () if causes.lowered_limit(gpu)]
    if not capped:
        return
    mobile = all(devices.laptop(gpu) for gpu in capped)
    yield Diagnosis(
        title=f"{devices.subject(capped)}: power limit at "
        f"{units.share(min(map(causes.limit_share, capped)))} of the default",
        evidence=devices.facts(capped, _facts),
        cure=Cure(
            LAPTOP
            if mobile
            else "Restore the default, unless the limit is intended (heat, noise, power supply).",
            () if mobile else devices.settings(machine, _lines(capped)),
        ),
        severity=Severity.NOTE if mobile else Severity.WARNING,
    )


def _facts(gpu: Gpu) -> str:
    most = f", at most {gpu.power_limit_max_w:g} W" if gpu.power_limit_max_w is not None else ""
    return f"limit {gpu.power_limit_w:g} W, default {gpu.power_limit_default_w:g} W{most}"


def _lines(capped: list[Gpu]) -> list[str]:
    amd = [str(gpu.index) for gpu in capped if gpu.vendor == "amd" and gpu.index is not None]
    lines = [f"rocm-smi -d {' '.join(amd)} --resetpoweroverdrive"] if amd else []
    return lines + causes.default_limits(capped)
