"""The Identity of this machine, quick because `run` asks before each program."""

from __future__ import annotations

import platform

from flatout.nouns.identity import Identity
from flatout.probing import cpu, memory, nvml


def identity(torch: str | None = None, python: str | None = None) -> Identity:
    """Facts about this machine. torch, python: versions in the user's interpreter, if known."""
    return Identity(
        system=platform.system(),
        cpu=cpu.name(),
        cores=cpu.cores(),
        memory_bytes=memory.usable_bytes(),
        gpus=nvml.gpus(),
        python=python or platform.python_version(),
        torch=torch,
    )
