"""Persistence mode is off: the driver unloads an idle GPU, and every start takes longer.

## What it sees

On Linux, a data-center GPU (a warning) or another one without a screen (a note) with persistence
mode off; in a container, where only the host can change it, always a note. Laptops are left out:
there it costs battery.

## Why it matters

When the last program ends, the driver unloads the GPU's state; the next program waits for one to
several seconds per GPU, and settings such as power limits and clocks are lost.

## Cure

Run NVIDIA's persistence daemon (on Ubuntu with an addition, since its service starts the daemon
with --no-persistence-mode), or switch the mode on by hand (until the next restart).

## References

- https://docs.nvidia.com/deploy/driver-persistence/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

OVERRIDE = "/etc/systemd/system/nvidia-persistenced.service.d"
"""Ubuntu starts the daemon with --no-persistence-mode."""

CHECK = Check(code="HW010", severity=Severity.NOTE, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs with persistence mode off."""
    if machine.system.name != "Linux" or machine.container.wsl is not None:
        return
    off = [
        gpu
        for gpu in machine.gpus_of("nvidia")
        if gpu.persistence_mode is False and gpu.display is not True and not devices.laptop(gpu)
    ]
    if not off:
        return
    servers = [gpu for gpu in off if devices.data_center(gpu)]
    lines = ["systemctl enable --now nvidia-persistenced"]
    system = machine.system
    if "ubuntu" in (system.distribution, *system.distribution_like):
        drop_in = r"[Service]\nExecStartPost=+-/usr/bin/nvidia-smi -pm 1\n"
        lines.append(
            f'sh -c \'mkdir -p {OVERRIDE} && printf "{drop_in}" > {OVERRIDE}/persistence.conf '
            "&& systemctl daemon-reload'"
        )
    yield Diagnosis(
        title=f"{devices.subject(off)}: persistence mode is off",
        evidence=devices.facts(off, lambda gpu: "persistence mode off"),
        cure=Cure(
            "The daemon keeps the GPU ready after every restart; the last line does it at once.",
            devices.settings(machine, [*lines, "nvidia-smi -pm 1"]),
        ),
        severity=Severity.WARNING if servers and machine.container.kind is None else Severity.NOTE,
    )
