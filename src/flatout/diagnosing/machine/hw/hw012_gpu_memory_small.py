"""A GPU has little memory: less than 6 GiB.

## What it sees

The largest GPU with its own memory has less than 6 GiB.

## Why it matters

The weights, gradients and Adam's state of a model take about 16 bytes per parameter in float32:
with 4 GiB that is a model of 270 million parameters at most, activations not counted.

## Cure

What works: bf16 or fp16 autocast, small batches with gradient accumulation, activation
checkpointing, LoRA or 8-bit optimizers, inference; or a larger GPU in the cloud.

## References

- https://docs.pytorch.org/docs/stable/amp.html
- https://docs.pytorch.org/docs/stable/checkpoint.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW012", severity=Severity.NOTE, since="0.2.0")
SMALL = 6 * 2**30
ROUNDING = 0.93
BYTES_PER_PARAMETER = 16


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if no GPU has more memory."""
    largest = max(devices.own_memory(machine), key=_memory, default=None)
    unsized = any(
        gpu.memory_bytes is None and gpu.shared_memory is not True for gpu in machine.gpus or ()
    )
    if largest is None or unsized or _memory(largest) >= SMALL * ROUNDING:
        return
    millions = _memory(largest) // BYTES_PER_PARAMETER // 10**6
    yield Diagnosis(
        title=f"{devices.label(largest)}: only {units.size(largest.memory_bytes)} of memory",
        evidence=f"{units.size(largest.memory_bytes)}: with Adam in float32 at most about "
        f"{millions} million parameters, activations not counted",
        cure=Cure(
            "Autocast to half precision, small batches with gradient accumulation, activation "
            "checkpointing, LoRA, inference all work.",
        ),
    )


def _memory(gpu: Gpu) -> int:
    return gpu.memory_bytes or 0
