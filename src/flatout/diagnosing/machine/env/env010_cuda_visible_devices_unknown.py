"""CUDA_VISIBLE_DEVICES names a GPU that is not there.

## What it sees

An entry of CUDA_VISIBLE_DEVICES is a number above the last GPU, the start of a UUID that no GPU (or
more than one) has, a MIG device that does not exist, something that is neither number nor UUID, or
an entry that is listed twice.

## Why it matters

CUDA reads the list from left to right and silently stops at the first invalid entry: with "0,9,1"
on two GPUs only GPU 0 is seen, with "9,0" none. The same entry twice leaves none. Inside a
container the GPUs that were passed through are counted from 0.

## Cure

Name the GPUs as `nvidia-smi -L` prints them, or unset the variable. CUDA numbers GPUs by speed
unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set; UUIDs are never ambiguous.

## References

- https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
- https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import visible_devices
from flatout.installing import system_packages, target
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV010", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the first invalid entry."""
    value = (machine.environment or {}).get(visible_devices.NAME)
    cards = driver_state.listed(machine)
    unsure = any(card.driver_sees is None for card in machine.gpus_of("nvidia"))
    if value is None or not cards or unsure or visible_devices.hides_all(value):
        return
    reading = visible_devices.read(value, cards)
    if reading.wrong is None:
        return
    visible = ", ".join(reading.visible) or "no GPU"
    usable = ",".join(reading.usable) or None
    yield Diagnosis(
        title=f'CUDA_VISIBLE_DEVICES stops at "{reading.wrong[:24]}": CUDA sees {visible}'[:100],
        evidence=f'CUDA_VISIBLE_DEVICES="{value[:120]}"; "{reading.wrong[:48]}": {reading.reason}; '
        f"the driver lists {len(cards)} NVIDIA GPU(s); seen by CUDA: {visible}",
        cure=Cure(
            f"Set it to {usable}, or to what the first line prints, also where it comes from (a "
            "profile, an env file, a job script)."
            if usable
            else "Unset it, or name GPUs as the first line prints them.",
            ("nvidia-smi -L", *_commands(target.of(machine), usable)),
        ),
        severity=Severity.WARNING if reading.visible else Severity.ERROR,
    )


def _commands(place: Target, usable: str | None) -> tuple[str, ...]:
    """A value for this shell only: a permanent one would hide GPUs added later."""
    lines = system_packages.variable(place, visible_devices.NAME, usable)
    return lines[:1] if usable else lines
