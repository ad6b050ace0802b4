"""ROCm finds no AMD GPU: its driver is not loaded, or its device files are closed to this user.

## What it sees

- An AMD GPU on the bus without a kernel driver, and no module amdgpu.
- /dev/kfd or /dev/dri/renderD* exist, and this user may not read and write them. Graphics in the
  processor beside a GPU of NVIDIA's do not count, unless torch is built for ROCm.

## Why it matters

Without amdgpu there is no /dev/kfd. Where it may not be opened, `torch.cuda.is_available()` is
False, and rocminfo says "Unable to open /dev/kfd read-write: Permission denied".

## Cure

Load the module; if the kernel has none for this GPU, install AMD's driver. Closed files: add the
user to the group that owns them (render, on some systems video), and log in again.

## References

- https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import driver, system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV053", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the driver, one with all closed files."""
    yield from _driver(machine)
    yield from _permission(machine)


def _driver(machine: Machine) -> Iterator[Diagnosis]:
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


def _permission(machine: Machine) -> Iterator[Diagnosis]:
    closed = [
        file
        for file in machine.kernel.device_files or ()
        if file.exists
        and (file.path == "/dev/kfd" or file.path.startswith("/dev/dri/render"))
        and False in (file.readable, file.writable)
    ]
    if not closed or not _rocm_expected(machine):
        return
    groups = sorted({file.group for file in closed if file.group} - {"root"}) or ["render", "video"]
    files = ", ".join(
        f"{file.path} ({file.mode or 'mode ?'}, group {file.group or '?'})" for file in closed[:4]
    )
    mine = ", ".join(machine.kernel.user_groups or ()) or "not known"
    place = target.of(machine)
    line = system_packages.sudo(place, f'usermod -aG {",".join(groups)} "$USER"')
    outside = (
        f"# start the container with: --device /dev/kfd --device /dev/dri --group-add {groups[0]}"
    )
    yield Diagnosis(
        title=f"no permission to open {closed[0].path}: ROCm sees no GPU",
        evidence=f"{files}; this user's groups: {mine}",
        cure=Cure(
            "Join the group that owns the files, and log in again.",
            (outside,) if place.container else (line, "# log out and in again, then: id -nG"),
        ),
    )


def _rocm_expected(machine: Machine) -> bool:
    """Whether ROCm is meant to be used: not for an integrated GPU beside NVIDIA's and its torch."""
    if not machine.gpus_of("amd"):
        return False
    if software.rocm_of(machine.torch) is not None:
        return True
    return bool(software.capable(machine, "amd")) and not machine.gpus_of("nvidia")
