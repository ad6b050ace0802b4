"""The GPU that trains also draws the screen, and that costs memory.

## What it sees

A display is connected to the GPU, and more than 10 % of its memory is in use besides programs that
compute.

## Why it matters

The desktop, browsers and video take that memory; it is missing for training, and it varies: the
same job fits today and not tomorrow. Windows also ends kernels that run longer than two seconds.

## Cure

Close browsers, plug the screen into the processor's own graphics if it has one, or log out of the
desktop and train over the network.

## References

- https://learn.microsoft.com/windows-hardware/drivers/display/timeout-detection-and-recovery
- https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_metal
from flatout.installing import system_packages, target
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW020", severity=Severity.NOTE, since="0.2.0")
SHARE = 0.10
COMPUTES = re.compile(r"python|jupyter|ollama|vllm|llama|tritonserver", re.IGNORECASE)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding per GPU whose screen takes much of its memory."""
    for gpu in devices.own_memory(machine):
        used, whole = gpu.memory_used_bytes, gpu.memory_bytes
        if gpu.display is not True or used is None or not whole or gpu.processes is None:
            continue
        computing = _computing(gpu)
        if used - computing <= SHARE * whole:
            continue
        yield Diagnosis(
            title=f"{devices.label(gpu)}: the screen takes {units.size(used - computing)}",
            evidence=f"{units.size(used)} of {units.size(whole)} in use, {units.size(computing)} "
            "of it by programs that compute; a display is connected to it",
            cure=Cure(
                "Close browsers, use the processor's graphics for the screen, or stop the desktop "
                "while training (this ends the session on the screen).",
                _commands(machine),
            ),
        )


def _computing(gpu: Gpu) -> int:
    return sum(
        process.memory_bytes or 0
        for process in gpu.processes or ()
        if COMPUTES.search(process.name or "")
    )


def _commands(machine: Machine) -> tuple[str, ...]:
    if not on_metal(machine):
        return ()
    line = system_packages.sudo(target.of(machine), "systemctl isolate multi-user.target")
    return ("nvidia-smi", f"# without desktop, from a text console or over ssh: {line}")
