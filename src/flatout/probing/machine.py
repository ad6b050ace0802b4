"""The Machine here, from all sources that can be asked without torch."""

from __future__ import annotations

import platform

from flatout.nouns.machine import Machine
from flatout.probing import cpu, memory, nvml


def machine(torch: str | None = None, python: str | None = None) -> Machine:
    """Facts about this machine. torch, python: versions in the user's interpreter, if known."""
    return Machine(
        system=platform.system(),
        cpu=cpu.name(),
        cores=cpu.cores(),
        memory_bytes=memory.usable_bytes(),
        gpus=nvml.gpus(),
        python=python or platform.python_version(),
        torch=torch,
    )
