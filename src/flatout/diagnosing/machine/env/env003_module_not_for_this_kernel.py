"""NVIDIA's driver is installed, but not for the kernel that is running.

## What it sees

`nvidia.ko` is on disk for other kernel releases and not for the running one, and it is not loaded.
A kernel update leaves this behind if DKMS could not build the module, usually because the new
kernel's headers are missing.

## Why it matters

A kernel module fits one kernel release. Without it there is no /dev/nvidia0, nvidia-smi fails, and
torch runs on the CPU.

## Cure

Install the running kernel's headers, let DKMS build the module, and load it. If the driver came
without DKMS, reinstall the driver. Until then, starting the previous kernel from the boot menu also
works.

## References

- https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
- https://github.com/dell/dkms
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, shell, system_packages
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV003", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if the module exists only for other kernels."""
    kernel, release = machine.kernel, machine.system.release
    if not driver_state.module_missing(machine) or kernel.nvidia_module_on_disk is not False:
        return
    if not kernel.nvidia_module_for or release is None or release in kernel.nvidia_module_for:
        return
    place = driver_state.place(machine)
    words = {True: "there", False: "missing", None: "not known"}
    commands: tuple[str, ...]
    if kernel.dkms is False:
        text = (
            "Reinstall the driver with DKMS, which builds it for each kernel update. Until "
            "then the previous kernel in the boot menu still works."
        )
        packages = system_packages.commands(place, "kernel-headers", "dkms")
        commands = (*packages, *driver.commands(place))
    else:
        first = "Install the kernel's headers and build" if kernel.headers is not True else "Build"
        text = f"{first} the module for the running kernel with DKMS, then load it."
        reinstall = "If dkms built nothing, the driver was installed without it. Reinstall it:"
        commands = (
            *(() if kernel.headers else system_packages.commands(place, "kernel-headers")),
            "dkms status",
            system_packages.sudo(place, 'dkms autoinstall -k "$(uname -r)"'),
            system_packages.sudo(place, "modprobe nvidia"),
            "nvidia-smi",
            shell.sentence(reinstall),
            *shell.remarks(driver.commands(place)),
        )
    yield Diagnosis(
        title=f"the NVIDIA module is not built for the running kernel {release}"[:100],
        evidence=f"running: {release}; nvidia.ko is there for "
        f"{', '.join(kernel.nvidia_module_for)}; kernel headers: {words[kernel.headers]}; "
        f"dkms: {words[kernel.dkms]}",
        cure=Cure(text, commands),
    )
