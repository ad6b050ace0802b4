"""The nouveau driver holds an NVIDIA GPU, so NVIDIA's own driver cannot use it.

## What it sees

The kernel's nouveau driver is bound to an NVIDIA GPU; or nouveau is loaded, NVIDIA's module is not,
and no driver is bound to the GPU.

## Why it matters

nouveau is a display driver without CUDA. As long as it holds the GPU, NVIDIA's driver cannot take
it, and torch sees no GPU at all. If NVIDIA's driver has other GPUs of this machine, it is a note.

## Cure

Blacklist nouveau in /etc/modprobe.d, rebuild the boot image, install NVIDIA's driver if it is
missing, and restart.

## References

- https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, system_packages
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(
    code="ENV002",
    severity=Severity.ERROR,
    since="0.2.0",
    hides=("ENV001", "ENV003", "ENV008", "ENV011", "ENV019", "ENV025"),
)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the machine, however many GPUs nouveau holds."""
    modules = machine.kernel.modules or ()
    likely = "nouveau" in modules and driver_state.loaded(machine) is False
    gpus = [
        gpu
        for gpu in machine.gpus_of("nvidia")
        if gpu.kernel_driver == "nouveau"
        or (likely and gpu.kernel_driver is None and gpu.driver_sees is False)
    ]
    if not gpus:
        return
    place = driver_state.place(machine)
    on_disk = machine.kernel.nvidia_module_on_disk
    commands = driver.commands(place)
    if place.distribution == "nixos":  # its configuration forbids nouveau by itself
        text = (
            "Put NVIDIA's driver into the configuration, which also blacklists nouveau, and "
            "restart."
        )
    else:
        text = "Blacklist nouveau, rebuild the boot image, install NVIDIA's driver, and restart."
        if on_disk is True:
            text = "Blacklist nouveau, rebuild the boot image, and restart with NVIDIA's driver."
            commands = (system_packages.sudo(place, "reboot"),)
        forbid = r"printf 'blacklist nouveau\noptions nouveau modeset=0\n'"
        file = "/etc/modprobe.d/no-nouveau.conf"
        commands = (
            f"{forbid} | {system_packages.sudo(place, f'tee {file}')}",
            *driver.boot_image_commands(place),
            *commands,
        )
    loaded = ", ".join(sorted({"nouveau", *modules} & {"nouveau", "nvidia"}))
    there = {True: "yes", False: "no", None: "not known"}[on_disk]
    yield Diagnosis(
        title=f"nouveau holds {driver_state.name(gpus[0])}: no CUDA"[:100],
        evidence=f"held by nouveau: {driver_state.names(gpus)}; loaded modules: "
        f"{loaded}; nvidia.ko for this kernel: {there}",
        cure=Cure(text, driver_state.on_host(place, commands)),
        severity=Severity.NOTE if driver_state.listed(machine) else None,
    )
