"""Machines whose driver, or whose way to the GPU, is broken; each with the codes that must show."""

from __future__ import annotations

from typing import Any

from flatout.nouns.gpu import Driver, GpuProcess
from flatout.nouns.machine import Container, DeviceFile, Library, Machine, Xid
from machines.breaking import L4, NO_GPU, RTX_3090, UNKNOWN, bus_only, no_cuda, silent, visible
from machines.healthy import (
    a100,
    changed,
    container,
    cpu_server,
    device_files,
    driver,
    h100,
    kernel,
    torch,
    windows,
    workstation,
    wsl,
)


def without_module(**facts: Any) -> Machine:
    """The workstation with its driver on disk, and the module not loaded."""
    return no_cuda(
        workstation(),
        gpus=(bus_only(),),
        drivers=(silent("580.95.05"),),
        kernel=kernel(modules=(), device_files=(), **facts),
    )


def no_driver() -> Machine:
    """Ubuntu as it was installed, without NVIDIA's driver and with nouveau blacklisted."""
    return no_cuda(
        workstation(),
        gpus=(bus_only(),),
        drivers=(),
        kernel=kernel(
            modules=(), nvidia_module_on_disk=False, nvidia_module_for=(), device_files=()
        ),
    )


def windows_no_driver() -> Machine:
    """Windows with its basic display driver."""
    return no_cuda(
        windows(),
        gpus=(bus_only(name="NVIDIA GeForce RTX 4090", pci_address=None),),
        drivers=(),
    )


def nouveau() -> Machine:
    """Fedora as it was installed: nouveau has the GPU."""
    return no_cuda(
        workstation(),
        system__distribution="fedora",
        system__distribution_like=(),
        system__distribution_version="42",
        system__distribution_name="Fedora Linux 42 (Workstation Edition)",
        system__release="6.14.9-300.fc42.x86_64",
        gpus=(bus_only(kernel_driver="nouveau"),),
        drivers=(),
        kernel=kernel(
            modules=("nouveau",),
            nvidia_module_on_disk=False,
            nvidia_module_for=(),
            device_files=(),
        ),
    )


def kernel_updated() -> Machine:
    """The kernel was updated, its headers were not, and DKMS could build nothing."""
    machine: Machine = changed(
        without_module(
            nvidia_module_on_disk=False,
            nvidia_module_for=("6.8.0-45-generic", "6.8.0-47-generic"),
            headers=False,
        ),
        system__release="6.8.0-48-generic",
        drivers__0__installed_version=None,
    )
    return machine


def driver_updated() -> Machine:
    """The driver was updated overnight, and the old module is still loaded."""
    said = "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.95"
    return no_cuda(
        workstation(),
        "Error 803: system has unsupported display driver / cuda driver combination",
        gpus=(bus_only(kernel_driver="nvidia"),),
        drivers=(
            silent(
                "580.95.05",
                "Driver/library version mismatch",
                kernel_version="570.195.03",
                smi_error=said,
            ),
        ),
    )


def old_driver() -> Machine:
    """torch for CUDA 12.8 on a driver of 2021's branch."""
    said = "The NVIDIA driver on your system is too old (found version 11040)."
    old = driver("470.256.02", "11.4", open_kernel_module=False)
    return no_cuda(workstation(), said, drivers=(old,), **RTX_3090)


def wsl_old_driver() -> Machine:
    """The same in WSL, where Windows' driver counts."""
    said = "The NVIDIA driver on your system is too old (found version 11060)."
    old = changed(wsl().drivers[0], version="512.95", cuda="11.6")  # type: ignore[index]
    return no_cuda(wsl(), said, drivers=(old,), **RTX_3090)


def files_of_video() -> Machine:
    """openSUSE gives NVIDIA's files to the group video, and this user is not in it."""
    said = "Failed to initialize NVML: Insufficient Permissions"
    files = tuple(
        DeviceFile(file.path, True, False, False, "video", "0660") for file in device_files(1)
    )
    return no_cuda(
        workstation(),
        NO_GPU,
        system__distribution="opensuse-leap",
        system__distribution_like=("suse", "opensuse"),
        system__distribution_version="15.6",
        system__distribution_name="openSUSE Leap 15.6",
        system__libc="glibc 2.38",
        gpus=(bus_only(kernel_driver="nvidia"),),
        drivers=(
            silent(
                "580.95.05",
                "Insufficient Permissions",
                kernel_version="580.95.05",
                smi_error=said,
            ),
        ),
        kernel__device_files=files,
        kernel__user_groups=("users",),
    )


def no_uvm() -> Machine:
    """nvidia-smi works, and CUDA does not: nobody has loaded nvidia_uvm."""
    return no_cuda(
        workstation(),
        UNKNOWN,
        kernel=kernel(modules=("nvidia", "nvidia_modeset"), device_files=device_files(1)[:2]),
    )


def secure_boot() -> Machine:
    """DKMS has built and signed the module, and its key was never enrolled."""
    machine: Machine = changed(without_module(), system__secure_boot=True)
    return machine


def docker_without_gpu() -> Machine:
    """docker run without --gpus, on a host with an L4."""
    return no_cuda(
        container(),
        container=Container(kind="docker", gpu_passed_through=False),
        gpus=(bus_only("nvidia", **L4),),
        drivers=(
            silent(
                error="NVML Shared Library Not Found",
                smi_error="not found on PATH",
                kernel_version="580.95.05",
            ),
        ),
        kernel__device_files=(),
    )


def pod_without_gpu() -> Machine:
    """A pod without a limit of nvidia.com/gpu has come to a node without a GPU."""
    return no_cuda(
        changed(
            cpu_server(),
            container=Container(kind="kubernetes", gpu_passed_through=False),
            disks=container().disks,
            kernel__nvidia_module_on_disk=None,
            kernel__nvidia_module_for=None,
            interpreter=container().interpreter,
        )
    )


def wsl_linux_driver() -> Machine:
    """`apt install cuda` inside WSL."""
    path = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
    said = "Failed to initialize NVML: GPU access blocked by the operating system"
    return no_cuda(
        wsl(),
        NO_GPU,
        gpus=(),
        drivers=(
            Driver(
                vendor="nvidia",
                library_version="580.95.05",
                nvml_error="The operating system has blocked the request.",
                smi_error=said,
            ),
        ),
        libraries=(Library("cuda", path, "580.95.05", "loader"),),
    )


def wsl_1() -> Machine:
    """The first WSL."""
    return no_cuda(
        wsl(),
        system__release="4.4.0-22621-Microsoft",
        container=Container(wsl=1, gpu_passed_through=False),
        gpus=(),
        drivers=(),
        kernel__device_files=(DeviceFile("/dev/dxg", False),),
    )


def wsl_without_dxg() -> Machine:
    """WSL 2 with the kernel of early 2020."""
    return no_cuda(
        wsl(),
        system__release="4.19.104-microsoft-standard",
        container__gpu_passed_through=False,
        gpus=(),
        drivers=(),
        kernel__device_files=(DeviceFile("/dev/dxg", False),),
    )


def no_fabric() -> Machine:
    """Eight H100, and the fabric manager was not installed with the new driver."""
    return no_cuda(
        h100(),
        "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        kernel__fabric_manager=False,
        gpus__all__nvlink_fabric="in_progress",
    )


def fallen_off() -> Machine:
    """One of eight A100 has fallen off the bus."""
    whole = a100()
    rest = (whole.gpus or ())[:7]
    lost = bus_only(
        "nvidia",
        name="NVIDIA A100-SXM4-80GB",
        pci_id="10de:20b2",
        pci_address="0000:28:00.0",
        driver_sees=False,
    )
    xid = Xid(79, "0000:28:00.0", 1, "GPU has fallen off the bus.")
    machine: Machine = changed(
        whole,
        gpus=(*rest, lost),
        gpu_pairs=tuple(pair for pair in whole.gpu_pairs or () if pair.second < 7),
        interpreter__torch__device_count=7,
        kernel__xids=(xid,),
    )
    return machine


def passed_through() -> Machine:
    """Two GPUs, one of them reserved for a virtual machine."""
    whole = workstation()
    other = bus_only("vfio-pci", pci_address="0000:41:00.0")
    machine: Machine = changed(
        whole,
        gpus=(*(whole.gpus or ()), other),
        kernel__modules=("nvidia", "nvidia_uvm", "nvidia_modeset", "vfio_pci"),
        kernel__iommu=True,
    )
    return machine


BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"


def prohibited() -> Machine:
    """A scheduler has closed the GPU."""
    return no_cuda(workstation(), BUSY, gpus__0__compute_mode="prohibited")


def exclusive() -> Machine:
    """Exclusive mode, and another program of little memory is there first."""
    server = GpuProcess(4711, "python3", 300 * 2**20)
    return no_cuda(
        workstation(),
        BUSY,
        gpus__0__compute_mode="exclusive_process",
        gpus__0__processes=(server,),
    )


def devices_taken_away() -> Machine:
    """A container that has lost its devices after `systemctl daemon-reload` on the host."""
    return no_cuda(
        container(),
        NO_GPU,
        gpus=(bus_only("nvidia", **L4),),
        drivers=(
            silent(
                error="Unknown Error",
                smi_error="Failed to initialize NVML: Unknown Error",
                kernel_version="580.95.05",
                library_version="580.95.05",
            ),
        ),
    )


def pascal_on_new_driver() -> Machine:
    """Driver 590 no longer knows a GTX 1080."""
    return no_cuda(
        workstation(),
        gpus=(bus_only(pci_id="10de:1b80"),),
        interpreter__torch=torch("2.7.1", "cu126"),
        drivers=(
            silent(
                "590.44.01",
                kernel_version="590.44.01",
                smi_error="No devices were found",
            ),
        ),
        kernel__device_files=device_files(1)[1:],
    )


def not_loaded() -> Machine:
    """The module is there, and a file in /etc/modprobe.d forbids it (prime-select intel)."""
    return without_module()


def gpu_is_lost() -> Machine:
    """The only GPU has fallen off the bus."""
    xid = Xid(79, "0000:21:00.0", 1, "GPU has fallen off the bus.")
    said = "Unable to determine the device handle for GPU 0000:21:00.0: GPU is lost."
    return no_cuda(
        workstation(),
        UNKNOWN,
        gpus=(bus_only(kernel_driver="nvidia"),),
        drivers=(silent("580.95.05", "GPU is lost", kernel_version="580.95.05", smi_error=said),),
        kernel__xids=(xid,),
    )


MACHINES: dict[str, tuple[Machine, tuple[str, ...]]] = {
    "no-driver": (no_driver(), ("ENV001",)),
    "windows-no-driver": (windows_no_driver(), ("ENV001",)),
    "nouveau": (nouveau(), ("ENV002",)),
    "kernel-updated": (kernel_updated(), ("ENV003",)),
    "driver-updated": (driver_updated(), ("ENV004",)),
    "driver-too-old": (old_driver(), ("ENV005",)),
    "wsl-driver-too-old": (wsl_old_driver(), ("ENV005",)),
    "no-permission": (files_of_video(), ("ENV006",)),
    "no-uvm": (no_uvm(), ("ENV007",)),
    "secure-boot": (secure_boot(), ("ENV008",)),
    "visible-devices-empty": (no_cuda(visible(workstation(), ""), NO_GPU), ("ENV009",)),
    "visible-devices-beyond": (
        visible(a100(), "0,1,2,8", interpreter__torch__device_count=3),
        ("ENV009",),
    ),
    "visible-devices-of-another": (
        no_cuda(visible(workstation(), "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"), NO_GPU),
        ("ENV009",),
    ),
    "docker-without-gpu": (docker_without_gpu(), ("ENV011",)),
    "pod-without-gpu": (pod_without_gpu(), ("ENV011",)),
    "wsl-linux-driver": (wsl_linux_driver(), ("ENV012",)),
    "wsl-1": (wsl_1(), ("ENV012",)),
    "wsl-without-dxg": (wsl_without_dxg(), ("ENV012",)),
    "fabric-not-started": (no_fabric(), ("ENV016",)),
    "gpu-fallen-off": (fallen_off(), ("ENV017", "HW008")),
    "gpu-passed-through": (passed_through(), ("ENV017",)),
    "compute-prohibited": (prohibited(), ("ENV018",)),
    "compute-exclusive": (exclusive(), ("ENV018",)),
    "container-lost-devices": (devices_taken_away(), ("ENV019",)),
    "pascal-on-new-driver": (pascal_on_new_driver(), ("ENV019",)),
    "module-not-loaded": (not_loaded(), ("ENV019",)),
    "only-gpu-lost": (gpu_is_lost(), ("ENV019", "HW008")),
}
