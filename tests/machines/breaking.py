"""Parts that broken machines are made of: GPUs without a driver, drivers that do not answer."""

from __future__ import annotations

import dataclasses
from typing import Any

from flatout.nouns.gpu import Driver, Gpu
from flatout.nouns.machine import DeviceFile, Machine
from machines.healthy import changed, device_files

NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed "
    "a driver from http://www.nvidia.com/Download/index.aspx"
)
NO_GPU = "No CUDA GPUs are available"
UNKNOWN = (
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
    "variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
)
SMI_FAILED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running."
)
RTX_3090 = {
    "gpus__0__name": "NVIDIA GeForce RTX 3090",
    "gpus__0__pci_id": "10de:2204",
    "gpus__0__compute_capability": (8, 6),
    "gpus__0__power_limit_w": 350.0,
    "gpus__0__power_limit_default_w": 350.0,
    "gpus__0__power_limit_max_w": 400.0,
    "gpus__0__clock_sm_max_mhz": 2100,
}


def no_cuda(machine: Machine, error: str = NO_DRIVER, **changes: Any) -> Machine:
    """torch finds no GPU."""
    blind: Machine = changed(
        machine,
        interpreter__torch__cuda_available=False,
        interpreter__torch__device_count=0,
        interpreter__torch__cuda_error=error,
        **changes,
    )
    return blind


def bus_only(kernel_driver: str | None = None, **facts: Any) -> Gpu:
    """An NVIDIA GPU of which only the bus tells; NVIDIA's module would tell its name, too."""
    ours = kernel_driver == "nvidia"
    base = Gpu(
        vendor="nvidia",
        name="NVIDIA GeForce RTX 4090" if ours else None,
        pci_address="0000:21:00.0",
        pci_id="10de:2684",
        driver_sees=None if ours else False,
        kernel_driver=kernel_driver,
    )
    return dataclasses.replace(base, **facts)


L4 = {"name": "NVIDIA L4", "pci_id": "10de:27b8"}


def silent(installed: str | None = None, error: str = "Driver Not Loaded", **facts: Any) -> Driver:
    """A driver that does not answer; what is on disk is known."""
    base = Driver(
        vendor="nvidia",
        installed_version=installed,
        library_version=installed,
        nvml_error=error,
        smi_error=SMI_FAILED,
    )
    return dataclasses.replace(base, **facts)


def missing(*names: str, count: int = 1) -> tuple[DeviceFile, ...]:
    """NVIDIA's device files, some of which are not there."""
    return tuple(
        DeviceFile(file.path, False) if file.path.removeprefix("/dev/") in names else file
        for file in device_files(count)
    )


def visible(machine: Machine, value: str, **changes: Any) -> Machine:
    """The machine with CUDA_VISIBLE_DEVICES."""
    told: Machine = changed(machine, environment={"CUDA_VISIBLE_DEVICES": value}, **changes)
    return told
