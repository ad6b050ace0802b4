"""How machines with other software are made from the healthy ones."""

from __future__ import annotations

from typing import Any

from flatout.nouns.gpu import Gpu
from flatout.nouns.interpreter import Package
from flatout.nouns.machine import DeviceFile, Library, Machine
from machines.healthy import (
    GIB,
    changed,
    cpu_server,
    disks,
    interpreter,
    memory,
    rocm,
    torch,
    workstation,
)

SITE = "/home/user/venv/lib/python3.12/site-packages"
USER_SITE = "/home/user/.local/lib/python3.12/site-packages"
TO_HOPPER = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
UNKNOWN = (
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
    "variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
)
GTX_1080 = {
    "name": "NVIDIA GeForce GTX 1080 Ti",
    "pci_id": "10de:1b06",
    "compute_capability": (6, 1),
    "memory_bytes": 11 * GIB,
    "pcie_generation_max": 3,
    "pcie_generation_card": 3,
    "power_limit_w": 250.0,
    "power_limit_default_w": 250.0,
    "power_limit_max_w": 300.0,
    "clock_sm_max_mhz": 1911,
}
RTX_5090 = {
    "name": "NVIDIA GeForce RTX 5090",
    "pci_id": "10de:2b85",
    "compute_capability": (12, 0),
    "memory_bytes": 32 * GIB,
    "pcie_generation_max": 5,
    "pcie_generation_card": 5,
    "power_limit_w": 575.0,
    "power_limit_default_w": 575.0,
    "power_limit_max_w": 600.0,
}


def with_torch(machine: Machine, version: str = "2.9.1", build: str = "cu128", **facts: Any) -> Any:
    """The machine with another torch; its Triton goes along."""
    return changed(machine, interpreter=interpreter(torch(version, build, **facts)))


def not_importable(machine: Machine, error: str, **changes: Any) -> Any:
    """torch is there and cannot be imported: it says nothing of itself."""
    facts = (
        "cuda_available",
        "device_count",
        "arch_list",
        "cudnn",
        "nccl",
        "mps_available",
        "xpu_available",
    )
    return changed(
        machine,
        interpreter__torch__imported=False,
        interpreter__torch__import_error=error,
        **{f"interpreter__torch__{fact}": None for fact in facts},
        **changes,
    )


def with_packages(machine: Machine, *packages: Package, **changes: Any) -> Any:
    """The machine with more packages in the interpreter."""
    assert machine.interpreter is not None
    there = machine.interpreter.packages or ()
    return changed(machine, interpreter__packages=(*there, *packages), **changes)


def library(name: str, version: str, folder: str = "/opt/nvidia/lib") -> Library:
    """A library that LD_LIBRARY_PATH leads to."""
    return Library(name, f"{folder}/lib{name}.so.{version}", version, "library_path")


def amd_desktop(name: str = "AMD Radeon RX 7900 XTX", gfx: str = "gfx1100", **facts: Any) -> Any:
    """A desktop with one Radeon card and torch for ROCm."""
    server = rocm()
    assert server.gpus is not None and server.kernel.device_files is not None
    card = changed(
        server.gpus[0],
        name=name,
        pci_id="1002:744c",
        gfx=gfx,
        memory_bytes=24 * GIB,
        pcie_generation_max=4,
        pcie_generation_card=4,
    )
    desktop = changed(
        server,
        gpus=(card,),
        cpu=workstation().cpu,
        memory=memory(64),
        disks=disks(),
        network_ports=(),
        kernel__device_files=server.kernel.device_files[:2],
        kernel__numa_nodes=1,
        interpreter__torch__device_count=1,
    )
    return changed(desktop, **facts)


def arc(**changes: Any) -> Any:
    """A desktop with an Intel Arc card."""
    card = Gpu(
        vendor="intel",
        name="Intel Arc A770 Graphics",
        index=0,
        pci_address="0000:03:00.0",
        pci_id="8086:56a0",
        driver_sees=True,
        kernel_driver="i915",
        memory_bytes=16 * GIB,
        shared_memory=False,
    )
    files = (DeviceFile("/dev/dri/renderD128", True, True, True, "render", "0660"),)
    base = changed(
        cpu_server(),
        gpus=(card,),
        kernel__modules=("i915",),
        kernel__device_files=files,
        cpu=workstation().cpu,
        memory=memory(32),
    )
    return changed(base, **changes)
