"""There is an AMD GPU, and its kernel driver amdgpu is not loaded.

## What it sees

An AMD GPU on the bus without a kernel driver, and no module amdgpu.

## Why it matters

Without amdgpu there is no /dev/kfd, and ROCm finds no GPU.

## Cure

Load the module; if the kernel has none for this GPU, install AMD's driver.

## References

- https://rocm.docs.amd.com/projects/install-on-linux/en/latest/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import driver, system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV054", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding, outside of containers and WSL."""
    modules = machine.kernel.modules
    gpus = [gpu for gpu in software.capable(machine, "amd") if gpu.kernel_driver is None]
    inside = machine.container.kind is not None or machine.container.wsl is not None
    if not gpus or modules is None or "amdgpu" in modules or inside:
        return
    if not software.on(machine, "Linux"):
        return
    place = target.of(machine)
    load = system_packages.sudo(place, "modprobe amdgpu")
    lines = driver.commands(place) if place.vendor == "amd" else ()
    yield Diagnosis(
        title=f"no driver for {software.gpu_name(gpus[0])}: amdgpu is not loaded",
        evidence=f"{software.gpu_name(gpus[0])} at {gpus[0].pci_address or '?'} has no kernel "
        f"driver; loaded: {', '.join(modules) or 'none of a GPU'}",
        cure=Cure("Load amdgpu; where that fails, install AMD's driver.", (load, *lines)),
    )
