"""CUDA_VISIBLE_DEVICES hides all GPUs.

## What it sees

The machine has an NVIDIA GPU, and CUDA_VISIBLE_DEVICES is set and begins with nothing, -1 or a word
such as NoDevFiles.

## Why it matters

An empty value is not the same as no value: CUDA then shows no GPU at all. It is often left over
from a test on the CPU, written by a scheduler for a job that asked for no GPU, or set to an empty
shell variable by mistake.

## Cure

Unset the variable, and remove it from a profile, env file or job script that sets it. In a job of
Slurm, ask for a GPU (`--gres=gpu:1`) instead.

## References

- https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import visible_devices
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV009", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if the variable hides GPUs that are there."""
    value = (machine.environment or {}).get(visible_devices.NAME)
    cards = machine.gpus_of("nvidia")
    if value is None or not cards or not visible_devices.hides_all(value):
        return
    many = "the GPU" if len(cards) == 1 else f"all {len(cards)} GPUs"
    yield Diagnosis(
        title=f'CUDA_VISIBLE_DEVICES="{value[:20]}" hides {many}',
        evidence=f'CUDA_VISIBLE_DEVICES is set to "{value[:60]}"; NVIDIA GPUs here: {len(cards)} '
        f"({driver_state.names(cards[:2])})",
        cure=Cure(
            "Unset it, here and where it comes from. In a job of a scheduler, ask for a GPU "
            "instead: there the scheduler sets it.",
            system_packages.variable(target.of(machine), visible_devices.NAME, None),
        ),
    )
