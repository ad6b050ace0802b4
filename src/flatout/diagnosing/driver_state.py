"""What the checks of NVIDIA's driver ask of a Machine, each answered in one place."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterable

from flatout.installing import driver as driver_of
from flatout.installing import shell, system_packages, target
from flatout.installing.target import Target
from flatout.knowledge import gpus as data_sheets
from flatout.knowledge.compat import cuda
from flatout.nouns.gpu import Driver, Gpu
from flatout.nouns.machine import DeviceFile, Machine, Xid

ELSEWHERE = ("nouveau", "vfio-pci")
"""Kernel drivers that keep a GPU from NVIDIA's driver."""
PACKAGES = (
    "^(cuda-drivers|libcuda1|nvidia-(driver|dkms|kernel|compute|utils|smi)"
    "|libnvidia-(cfg|common|compute|decode|encode|extra|fbc1|gl|ml|ptxjitcompiler)"
    "|xorg-x11-drv-nvidia)"
)
"""Names of the packages of a Linux driver, without the container toolkit's."""
OLD_NUMBERS = (
    (0x0FC0, 0x103F, (3, 0)),
    (0x1180, 0x11FF, (3, 0)),
    (0x1280, 0x12BF, (3, 0)),
    (0x1340, 0x15EF, (5, 0)),
    (0x15F0, 0x15FF, (6, 0)),
    (0x1600, 0x17FF, (5, 0)),
    (0x1B00, 0x1D7F, (6, 0)),
    (0x1D80, 0x1DFF, (7, 0)),
)
"""PCI numbers of GPUs before Turing: Kepler (three times), Maxwell, Pascal's GP100, Maxwell,
Pascal, Volta. Source: https://pci-ids.ucw.cz/read/PC/10de.
"""
LISTS = {
    "apt": r"dpkg-query -W -f='${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p'",
    "dnf": "rpm -qa",
    "zypper": "rpm -qa",
    "pacman": "pacman -Qq",
}
REPAIRS = {
    "apt": "apt-get install --reinstall",
    "dnf": "dnf reinstall",
    "zypper": "zypper install --force",
    "pacman": "pacman -S",
}


def on_metal(machine: Machine) -> bool:
    """Whether this is Linux with its own kernel and driver: neither a container nor WSL."""
    inside = machine.container.kind is not None or machine.container.wsl is not None
    return machine.system.name == "Linux" and not inside


def on_bus(machine: Machine) -> tuple[Gpu, ...]:
    """NVIDIA GPUs on the PCI bus (a Jetson's is not; Windows reports no addresses)."""
    windows = machine.system.name == "Windows"
    return tuple(gpu for gpu in machine.gpus_of("nvidia") if windows or gpu.pci_address is not None)


def waiting(machine: Machine) -> tuple[Gpu, ...]:
    """GPUs on the bus that NVIDIA's driver could take but is not known to list."""
    return tuple(
        gpu
        for gpu in on_bus(machine)
        if gpu.driver_sees is not True and gpu.kernel_driver not in ELSEWHERE
    )


def listed(machine: Machine) -> tuple[Gpu, ...]:
    """NVIDIA GPUs that the driver lists."""
    return tuple(gpu for gpu in machine.gpus_of("nvidia") if gpu.driver_sees is True)


def loaded(machine: Machine) -> bool | None:
    """Whether NVIDIA's kernel module is loaded, or None if unknown."""
    return None if machine.kernel.modules is None else "nvidia" in machine.kernel.modules


def withheld(machine: Machine) -> tuple[DeviceFile, ...]:
    """GPUs' files whose mode permits everyone but which this process may not open.

    A batch system's cgroup gives a job only its own GPUs.
    """
    return tuple(
        file
        for file in machine.kernel.device_files or ()
        if re.fullmatch(r"/dev/nvidia\d+", file.path)
        and False in (file.readable, file.writable)
        and re.fullmatch("[0-7]*[67]", file.mode or "")
    )


def module_missing(machine: Machine) -> bool:
    """Whether GPUs wait on bare metal while NVIDIA's module is not loaded."""
    return on_metal(machine) and loaded(machine) is False and bool(waiting(machine))


def cuda_works(machine: Machine) -> bool | None:
    """Whether a torch built for CUDA found a GPU, or None if unknown."""
    torch = machine.torch
    return torch.cuda_available if torch and torch.cuda else None


def versions_system(machine: Machine) -> str:
    """The system whose driver versions count: in WSL the driver is Windows'."""
    return "Windows" if machine.container.wsl else machine.system.name or ""


def names(gpus: Iterable[Gpu]) -> str:
    """The GPUs with their addresses, for the evidence."""
    return ", ".join(_name_and_place(gpu) for gpu in gpus)


def name(gpu: Gpu) -> str:
    """Its name; without a driver often only the model's PCI number is known."""
    return gpu.name or (f"NVIDIA GPU {gpu.pci_id}" if gpu.pci_id else "the NVIDIA GPU")


def _name_and_place(gpu: Gpu) -> str:
    index = "" if gpu.index is None else f" (index {gpu.index})"
    return name(gpu) + (f" at {gpu.pci_address}" if gpu.pci_address else index)


def modules(machine: Machine) -> str:
    """The loaded modules that matter, for the evidence."""
    return ", ".join(machine.kernel.modules or ()) or "none"


def errors(driver: Driver | None) -> str:
    """What NVML and nvidia-smi say, for the evidence, or empty if there is no error."""
    if driver is None:
        return ""
    messages = {"NVML": driver.nvml_error, "nvidia-smi": driver.smi_error}
    return "; ".join(f"{source} says: {_short(text)}" for source, text in messages.items() if text)


def torch_says(machine: Machine) -> str:
    """CUDA's error as torch reports it, for the evidence, or empty if none."""
    message = machine.torch.cuda_error if machine.torch else None
    return f"torch says: {_short(message)}" if message else ""


def counted(xids: Iterable[Xid]) -> str:
    """Xid errors in the kernel's log, for the evidence, or empty if none."""
    counts = (
        f"Xid {xid.number}" + (f" {xid.count} times" if xid.count > 1 else "") for xid in xids
    )
    listed = ", ".join(counts)
    return f"kernel log: {listed}" if listed else ""


def capability(gpu: Gpu) -> tuple[int, int] | None:
    """Its compute capability, from the driver, the data sheet or its PCI number.

    The number only tells the architecture; the capability is then its oldest GPU's.
    """
    if gpu.compute_capability is not None:
        return gpu.compute_capability
    model = data_sheets.find(gpu.name) if gpu.name else None
    return model.compute_capability if model else _by_number(gpu.pci_id)


def _by_number(pci_id: str | None) -> tuple[int, int] | None:
    vendor, _, number = (pci_id or "").partition(":")
    if vendor != "10de" or not re.fullmatch("[0-9a-f]{4}", number):
        return None
    capabilities = (
        capability for first, last, capability in OLD_NUMBERS if first <= int(number, 16) <= last
    )
    return next(capabilities, None)


def place(machine: Machine) -> Target:
    """What to install for; by PCI number if the driver does not report the architecture."""
    place = target.of(machine)
    capabilities = [card for gpu in machine.gpus_of("nvidia") if (card := capability(gpu))]
    if place.vendor != "nvidia" or place.compute_capability is not None or not capabilities:
        return place
    return dataclasses.replace(place, compute_capability=min(capabilities))


def dropped(gpu: Gpu, driver: Driver | None) -> str | None:
    """The last driver branch for this GPU if the installed driver is newer, else None."""
    architecture = capability(gpu)
    branch = cuda.last_driver_branch(architecture) if architecture else None
    version = driver and (driver.kernel_version or driver.installed_version or driver.version)
    major = (version or "").partition(".")[0]
    return branch if branch and major.isdecimal() and int(major) > int(branch) else None


def on_host(place: Target, lines: Iterable[str]) -> tuple[str, ...]:
    """Lines that must run outside a container; inside one they become comments."""
    if not place.container:
        return tuple(lines)
    return ("# On the host, not in this container:", *shell.remarks(lines))


def installed_packages(place: Target) -> str | None:
    """The line that lists the driver's packages, or None for an unknown package manager."""
    family = system_packages.package_manager(place)
    return f"{LISTS[family]} | grep -E '{PACKAGES}'" if family in LISTS else None


def repair(place: Target) -> tuple[str, ...]:
    """Lines that reinstall the files of the installed driver packages."""
    listed = installed_packages(place)
    family = system_packages.package_manager(place)
    if listed is None or family is None or place.container or place.wsl:
        return driver_of.commands(place)
    return (
        system_packages.sudo(place, f"{REPAIRS[family]} $({listed})"),
        shell.sentence("Nothing listed? Then the driver came as a .run file: run that file again."),
    )


def _short(text: str) -> str:
    return textwrap.shorten(text, 140, placeholder=" ...")
