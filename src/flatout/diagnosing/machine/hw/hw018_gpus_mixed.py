"""The GPUs of this machine are of different models.

## What it sees

GPUs of one maker and different models, each with its own memory.

## Why it matters

In data-parallel training all ranks wait for the slowest, and the batch must fit the smallest. torch
numbers GPUs from the fastest, nvidia-smi by bus address: the same number may mean different cards.

## Cure

Train on the GPUs of one model (CUDA_VISIBLE_DEVICES), number them alike
(CUDA_DEVICE_ORDER=PCI_BUS_ID), and use the others for other work.

## References

- https://docs.nvidia.com/cuda/cuda-c-programming-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW018", severity=Severity.NOTE, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding per maker with different models."""
    for vendor in ("nvidia", "amd"):
        gpus_with_memory = devices.own_memory(machine)
        gpus = [gpu for gpu in gpus_with_memory if gpu.vendor == vendor and gpu.name]
        models: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            models.setdefault(gpu.name or "", []).append(gpu)
        if len(models) < 2:
            continue
        counts = [
            f"{len(alike)} x {name} with {units.size(alike[0].memory_bytes)}"
            for name, alike in models.items()
        ]
        yield Diagnosis(
            title=f"{len(models)} different models among {len(gpus)} GPUs",
            evidence="; ".join(counts),
            cure=Cure(
                "Train on the GPUs of one model; with all of them the slowest decides.",
                _commands(machine, vendor, list(models.values())),
            ),
        )


def _commands(machine: Machine, vendor: str, models: list[list[Gpu]]) -> tuple[str, ...]:
    most = max(models, key=lambda alike: (len(alike), alike[0].memory_bytes or 0))
    numbers = [str(gpu.index) for gpu in most if gpu.index is not None]
    if len(numbers) < len(most):
        return ()
    return devices.only(machine, vendor, numbers)
