"""Desktops and laptops as they stand everywhere, many of them quite healthy."""

from __future__ import annotations

import dataclasses

from flatout.nouns.gpu import Driver, Gpu
from flatout.nouns.interpreter import Interpreter
from flatout.nouns.machine import (
    Container,
    Cpu,
    DeviceFile,
    Limits,
    LinuxKernel,
    Machine,
)
from machines.healthy import (
    GIB,
    changed,
    cpu,
    cpu_server,
    device_files,
    disks,
    driver,
    gpu,
    interpreter,
    laptop,
    mac,
    memory,
    torch,
    windows,
    workstation,
)

RADEON = Gpu(
    vendor="amd",
    name="AMD Radeon(TM) Graphics",
    pci_id="1002:164e",
    pci_address="0000:0d:00.0",
    shared_memory=True,
)
"""In the processor."""


def windows_with_graphics_in_the_processor() -> Machine:
    """A desktop with Windows: a Ryzen with graphics of its own, and an RTX 3060."""
    card = dataclasses.replace(
        windows().gpus_of("nvidia")[0],
        name="NVIDIA GeForce RTX 3060",
        pci_id="10de:2504",
        compute_capability=(8, 6),
        memory_bytes=12 * GIB,
        power_limit_w=170.0,
        power_limit_default_w=170.0,
        clock_sm_max_mhz=2100,
    )
    machine: Machine = changed(windows(), gpus=(card, RADEON))
    return machine


def linux_with_graphics_in_the_processor() -> Machine:
    """The same with Linux, and a user outside of the group render."""
    files = (
        *device_files(1),
        DeviceFile("/dev/kfd", True, False, False, "render", "0660"),
        DeviceFile("/dev/dri/renderD128", True, False, False, "render", "0660"),
    )
    radeon = dataclasses.replace(RADEON, kernel_driver="amdgpu", driver_sees=True, gfx="gfx1036")
    machine: Machine = changed(
        workstation(),
        gpus=(gpu(), radeon),
        drivers=(driver(), Driver(vendor="amd", version="6.8.0")),
        kernel__modules=("amdgpu", "nvidia", "nvidia_modeset", "nvidia_uvm"),
        kernel__device_files=files,
        kernel__user_groups=("user",),
    )
    return machine


def dgx_spark() -> Machine:
    """GB10: one memory for processor and GPU; NVML tells none of it, and a placeholder of PCIe."""
    unknown = dict.fromkeys(
        (
            "memory_bytes",
            "memory_used_bytes",
            "power_limit_w",
            "power_limit_default_w",
            "power_limit_max_w",
            "temperature_slowdown_c",
            "clock_memory_mhz",
            "clock_memory_max_mhz",
            "shared_memory",
        )
    )
    chip = gpu(
        name="NVIDIA GB10",
        pci_address="000f:01:00.0",
        pci_id="10de:2e12",
        compute_capability=(12, 1),
        pcie_generation_max=1,
        pcie_generation_card=5,
        pcie_width=1,
        pcie_width_max=16,
        **unknown,
    )
    arm = Cpu(
        name="Cortex-X925",
        architecture="aarch64",
        cores=20,
        logical_cores=20,
        physical_cores=20,
        affinity_cores=20,
        governor="performance",
        scaling_driver="cppc_cpufreq",
    )
    machine: Machine = changed(
        workstation(),
        system__architecture="aarch64",
        system__release="6.14.0-1013-nvidia",
        cpu=arm,
        memory=memory(119),
        gpus=(chip,),
        interpreter=interpreter(
            torch("2.9.1", "cu130", cuda="13.0", arch_list=("sm_80", "sm_90", "sm_100", "sm_120"))
        ),
    )
    return machine


def small_mac() -> Machine:
    """A Mac mini with 8 GB, with the limit of open files that macOS gives everybody."""
    machine: Machine = changed(
        mac(),
        cpu__name="Apple M2",
        cpu__cores=8,
        cpu__logical_cores=8,
        cpu__physical_cores=8,
        memory=memory(8, shm_bytes=None, shm_free_bytes=None),
        gpus__0__name="Apple M2",
        gpus__0__memory_bytes=8 * GIB,
        limits=Limits(256, -1, None, 2666),
    )
    return machine


def laptop_at_rest() -> Machine:
    """A laptop whose NVIDIA GPU sleeps: only the bus tells of it, and with little."""
    asleep = Gpu(
        vendor="nvidia",
        name="NVIDIA GeForce RTX 4070 Laptop GPU",
        pci_address="0000:01:00.0",
        pci_id="10de:2820",
        kernel_driver="nvidia",
    )
    machine: Machine = changed(laptop(), gpus=(asleep, laptop().gpus_of("intel")[0]))
    return machine


def nixos() -> Machine:
    """NixOS with nouveau: its files in /etc are made from its configuration."""
    card = Gpu(
        vendor="nvidia",
        pci_id="10de:2684",
        pci_address="0000:01:00.0",
        driver_sees=False,
        kernel_driver="nouveau",
    )
    machine: Machine = changed(
        workstation(),
        system__distribution="nixos",
        system__distribution_like=(),
        system__distribution_version="25.05",
        system__distribution_name="NixOS 25.05 (Warbler)",
        gpus=(card,),
        drivers=(),
        kernel=LinuxKernel(
            modules=("nouveau",),
            nvidia_module_on_disk=False,
            nvidia_module_for=(),
            device_files=(),
            user_groups=("user", "wheel"),
        ),
        interpreter__torch__cuda_available=False,
        interpreter__torch__device_count=0,
    )
    return machine


def nixos_without_libraries() -> Machine:
    """NixOS with its driver, and a torch of pip that finds no C++ library."""
    machine: Machine = changed(
        workstation(),
        system__distribution="nixos",
        system__distribution_like=(),
        system__distribution_version="25.05",
        system__distribution_name="NixOS 25.05 (Warbler)",
        interpreter__torch__imported=False,
        interpreter__torch__import_error="ImportError: libstdc++.so.6: cannot open shared object "
        "file: No such file or directory",
        interpreter__torch__cuda_available=None,
        interpreter__torch__device_count=None,
    )
    return machine


def micro_vm() -> Machine:
    """Debian in a small virtual machine, without GPU."""
    machine: Machine = changed(
        cpu_server(),
        system__distribution="debian",
        system__distribution_like=(),
        system__distribution_version="12",
        system__distribution_name="Debian GNU/Linux 12 (bookworm)",
        system__root=True,
        cpu=cpu(2, governor=None, scaling_driver=None),
        memory=memory(8, swap_total_bytes=0),
        container=Container(virtual_machine="kvm"),
        disks=disks(60),
    )
    return machine


def shop_link() -> Machine:
    """Windows without Python: the name `python` opens the shop."""
    path = "C:\\Users\\user\\AppData\\Local\\Microsoft\\WindowsApps\\python.exe"
    machine: Machine = changed(
        windows(), interpreter=Interpreter(executable=path, error="ended with exit code 9009")
    )
    return machine


def old_python() -> Machine:
    """A Python that is too old to be asked."""
    told = "Python 3.8.10 is too old to be asked, the oldest is 3.10"
    python = Interpreter(executable="/usr/bin/python3", version="3.8.10", error=told)
    machine: Machine = changed(workstation(), interpreter=python)
    return machine


MACHINES: dict[str, tuple[Machine, tuple[str, ...]]] = {
    "windows-with-igpu": (windows_with_graphics_in_the_processor(), ()),
    "linux-with-igpu": (linux_with_graphics_in_the_processor(), ()),
    "dgx-spark": (dgx_spark(), ()),
    "mac-mini": (small_mac(), ("ENV061",)),
    "laptop-at-rest": (laptop_at_rest(), ()),
    "nixos-nouveau": (nixos(), ("ENV002",)),
    "nixos-without-libraries": (nixos_without_libraries(), ("ENV022",)),
    "micro-vm": (micro_vm(), ()),
    "windows-shop-link": (shop_link(), ("ENV075",)),
    "python-too-old-to-ask": (old_python(), ("ENV075",)),
}
