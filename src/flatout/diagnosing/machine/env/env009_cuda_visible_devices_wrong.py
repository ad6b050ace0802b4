"""CUDA_VISIBLE_DEVICES hides all GPUs, or names one that is not there.

## What it sees

CUDA_VISIBLE_DEVICES is set, and

- begins with nothing, -1 or a word such as NoDevFiles, or
- has an entry that is a number above the last GPU, the start of a UUID that no GPU (or more than
  one) has, a MIG device that does not exist, something that is neither number nor UUID, or an entry
  that is listed twice.

## Why it matters

An empty value is not the same as no value: CUDA then shows no GPU at all. It is often left over
from a test on the CPU, written by a scheduler for a job that asked for no GPU, or set to an empty
shell variable by mistake.

CUDA reads the list from left to right and silently stops at the first invalid entry: with "0,9,1"
on two GPUs only GPU 0 is seen, with "9,0" none. The same entry twice leaves none. Inside a
container the GPUs that were passed through are counted from 0.

## Cure

Unset the variable, and remove it from a profile, env file or job script that sets it, or name the
GPUs as `nvidia-smi -L` prints them. In a job of Slurm, ask for a GPU (`--gres=gpu:1`) instead. CUDA
numbers GPUs by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set; UUIDs are never ambiguous.

## References

- https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
- https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software, visible_devices
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV009", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding: it hides GPUs that are there, or has an invalid entry."""
    value = software.variable(machine, visible_devices.NAME)
    cards, listed = machine.gpus_of("nvidia"), driver_state.listed(machine)
    if value is None or not cards:
        return
    if visible_devices.hides_all(value):
        many = "the GPU" if len(cards) == 1 else f"all {len(cards)} GPUs"
        yield Diagnosis(
            title=f'CUDA_VISIBLE_DEVICES="{value[:20]}" hides {many}',
            evidence=f'CUDA_VISIBLE_DEVICES is set to "{value[:60]}"; NVIDIA GPUs here: '
            f"{len(cards)} ({driver_state.names(cards[:2])})",
            cure=Cure(
                "Unset it, here and where it comes from. In a job of a scheduler, ask for a GPU "
                "instead: there the scheduler sets it.",
                system_packages.variable(target.of(machine), visible_devices.NAME, None),
            ),
        )
    elif listed and all(card.driver_sees is not None for card in cards):
        yield from _wrong_entry(machine, value, listed)


def _wrong_entry(machine: Machine, value: str, cards: Sequence[Gpu]) -> Iterator[Diagnosis]:
    """For the first invalid entry; a warning if some GPU is left."""
    reading = visible_devices.read(value, cards)
    if reading.wrong is None:
        return
    visible = ", ".join(reading.visible) or "no GPU"
    usable = ",".join(reading.usable) or None
    lines = system_packages.variable(target.of(machine), visible_devices.NAME, usable)
    if usable:  # for this shell only: a permanent value would hide GPUs added later
        lines = lines[:1]
    yield Diagnosis(
        title=f'CUDA_VISIBLE_DEVICES stops at "{reading.wrong[:24]}": CUDA sees {visible}'[:100],
        evidence=f'CUDA_VISIBLE_DEVICES="{value[:120]}"; "{reading.wrong[:48]}": {reading.reason}; '
        f"the driver lists {len(cards)} NVIDIA GPU(s); seen by CUDA: {visible}",
        cure=Cure(
            f"Set it to {usable}, or to what the first line prints, also where it comes from (a "
            "profile, an env file, a job script)."
            if usable
            else "Unset it, or name GPUs as the first line prints them.",
            ("nvidia-smi -L", *lines),
        ),
        severity=Severity.WARNING if reading.visible else Severity.ERROR,
    )
