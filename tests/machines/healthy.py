"""Machines on which nothing is wrong, one of each kind; the broken ones are these, changed.

`dataclasses.replace` and `changed` make the broken ones. No check may find anything here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from flatout.nouns.gpu import Driver, Gpu, GpuPair
from flatout.nouns.interpreter import Interpreter, Package, Torch
from flatout.nouns.machine import (
    Container,
    Cpu,
    DeviceFile,
    Disk,
    Limits,
    LinuxKernel,
    Machine,
    Memory,
    NetworkPort,
    System,
)

GIB = 2**30


def changed(noun: Any, **changes: Any) -> Any:
    """`noun` with other values; `a__b=value` reaches into the noun at `a`.

    `gpus__0__x=value` changes the first item, `gpus__all__x=value` every item.
    """
    for path, value in changes.items():
        noun = _changed(noun, path.split("__"), value)
    return noun


def _changed(noun: Any, path: list[str], value: Any) -> Any:
    head, *rest = path
    if isinstance(noun, tuple):
        chosen = range(len(noun)) if head == "all" else [int(head)]
        return tuple(
            (_changed(item, rest, value) if rest else value) if index in chosen else item
            for index, item in enumerate(noun)
        )
    inner = _changed(getattr(noun, head), rest, value) if rest else value
    return dataclasses.replace(noun, **{head: inner})


def gpu(index: int = 0, **facts: Any) -> Gpu:
    """An NVIDIA GPU at rest, an RTX 4090 where nothing else is said."""
    base = Gpu(
        vendor="nvidia",
        name="NVIDIA GeForce RTX 4090",
        index=index,
        uuid=f"GPU-0000000{index}-1111-2222-3333-444444444444",
        pci_address=f"0000:{0x21 + index:02x}:00.0",
        pci_id="10de:2684",
        driver_sees=True,
        kernel_driver="nvidia",
        compute_capability=(8, 9),
        memory_bytes=24 * GIB,
        memory_used_bytes=GIB // 2,
        shared_memory=False,
        pcie_generation=1,
        pcie_generation_max=4,
        pcie_generation_card=4,
        pcie_width=16,
        pcie_width_max=16,
        numa_node=0,
        utilization=0.0,
        temperature_c=41,
        temperature_slowdown_c=90,
        power_w=28.0,
        power_limit_w=450.0,
        power_limit_default_w=450.0,
        power_limit_max_w=600.0,
        clock_sm_mhz=210,
        clock_sm_max_mhz=3105,
        clock_memory_mhz=405,
        clock_memory_max_mhz=10501,
        throttles=("gpu_idle",),
        persistence_mode=True,
        compute_mode="default",
        display=False,
        processes=(),
    )
    return dataclasses.replace(base, **facts)


def data_center_gpu(index: int, name: str, **facts: Any) -> Gpu:
    """A GPU of a server: ECC on, MIG off, NVLink up."""
    server = {
        "name": name,
        "ecc": True,
        "ecc_uncorrected": 0,
        "ecc_uncorrected_lifetime": 0,
        "retired_pages": 0,
        "retirement_pending": False,
        "row_remap_failed": False,
        "mig": False,
        "memory_used_bytes": 0,
        "temperature_slowdown_c": 87,
    }
    return gpu(index, **{**server, **facts})


def device_files(count: int, group: str = "root") -> tuple[DeviceFile, ...]:
    """NVIDIA's files in /dev, open to all."""
    names = [f"nvidia{index}" for index in range(count)] + ["nvidiactl", "nvidia-uvm"]
    return tuple(DeviceFile(f"/dev/{name}", True, True, True, group, "0666") for name in names)


def torch(version: str = "2.9.1", build: str = "cu128", **facts: Any) -> Torch:
    """PyTorch as pip installs it, imported without trouble."""
    cuda = f"{build[2:-1]}.{build[-1]}" if build.startswith("cu") else None
    base = Torch(
        version=version,
        build=build,
        cuda=cuda,
        location="/home/user/venv/lib/python3.12/site-packages",
        installer="pip",
        imported=True,
        cuda_available=cuda is not None,
        device_count=1 if cuda else 0,
        arch_list=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120") if cuda else (),
        cudnn="9.10.2" if cuda else None,
        nccl="2.27.5" if cuda else None,
        mps_built=False,
        mps_available=False,
        xpu_available=False,
    )
    return dataclasses.replace(base, **facts)


def interpreter(of_torch: Torch | None, **facts: Any) -> Interpreter:
    """Python 3.12 in a virtual environment, with what torch.compile needs."""
    site = "/home/user/venv/lib/python3.12/site-packages"
    packages = []
    if of_torch is not None:
        packages.append(Package("torch", of_torch.version, site, "pip"))
        if of_torch.cuda is not None:
            packages.append(Package("triton", "3.5.1", site, "pip"))
    base = Interpreter(
        executable="/home/user/venv/bin/python",
        version="3.12.3",
        bits=64,
        free_threaded=False,
        virtual_environment=True,
        conda=False,
        managed_by="pip",
        user_site=False,
        headers=True,
        compiler="/usr/bin/g++",
        compiler_searched=True,
        packages=tuple(packages),
        torch=of_torch,
    )
    return dataclasses.replace(base, **facts)


def cpu(cores: int, **facts: Any) -> Cpu:
    """A server's processor with bfloat16."""
    base = Cpu(
        name="AMD EPYC 9454 48-Core Processor",
        architecture="x86_64",
        cores=cores,
        logical_cores=cores,
        physical_cores=cores // 2,
        affinity_cores=cores,
        governor="performance",
        scaling_driver="acpi-cpufreq",
    )
    return dataclasses.replace(base, **facts)


def memory(gib: int, **facts: Any) -> Memory:
    """Main memory, three quarters of it free; /dev/shm half as large, as Linux makes it."""
    base = Memory(
        total_bytes=gib * GIB,
        available_bytes=gib * GIB * 3 // 4,
        swap_total_bytes=8 * GIB,
        swap_used_bytes=0,
        shm_bytes=gib * GIB // 2,
        shm_free_bytes=gib * GIB // 2,
    )
    return dataclasses.replace(base, **facts)


def disks(gib: int = 1800, **facts: Any) -> tuple[Disk, ...]:
    """One fast disk, half full, for work, temporary files and caches."""
    places = {"work": "/home/user/job", "temporary": "/tmp", "cache": "/home/user/.cache"}
    base = Disk(
        path="",
        use="",
        total_bytes=gib * GIB,
        free_bytes=gib * GIB // 2,
        file_system="ext4",
        network=False,
    )
    return tuple(
        dataclasses.replace(base, path=path, use=use, **facts) for use, path in places.items()
    )


def kernel(gpus: int = 1, **facts: Any) -> LinuxKernel:
    """Linux with NVIDIA's module loaded."""
    base = LinuxKernel(
        modules=("nvidia", "nvidia_uvm", "nvidia_modeset"),
        nvidia_module_on_disk=True,
        nvidia_module_for=("6.8.0-45-generic",),
        headers=True,
        dkms=True,
        iommu=False,
        numa_nodes=1,
        device_files=device_files(gpus),
        user_groups=("user", "video", "render"),
        xids=(),
    )
    return dataclasses.replace(base, **facts)


LINUX = System(
    name="Linux",
    release="6.8.0-45-generic",
    architecture="x86_64",
    distribution="ubuntu",
    distribution_like=("debian",),
    distribution_version="24.04",
    distribution_name="Ubuntu 24.04.1 LTS",
    libc="glibc 2.39",
    secure_boot=False,
    root=False,
)
WINDOWS = System(
    name="Windows",
    release="10.0.22631",
    architecture="AMD64",
    distribution="windows",
    distribution_version="11",
    distribution_name="Windows 11 Pro",
    root=False,
)
MACOS = System(
    name="Darwin",
    release="24.1.0",
    architecture="arm64",
    distribution="macos",
    distribution_version="15.1",
    distribution_name="macOS 15.1",
    root=False,
    rosetta=False,
)
LIMITS = Limits(open_files=65536, open_files_hard=1048576, locked_memory_bytes=-1, processes=127000)


def driver(version: str = "580.95.05", cuda: str = "13.0", **facts: Any) -> Driver:
    """NVIDIA's driver, the same version in the kernel, in the library and on disk."""
    base = Driver(
        vendor="nvidia",
        version=version,
        kernel_version=version,
        installed_version=version,
        library_version=version,
        cuda=cuda,
        open_kernel_module=True,
    )
    return dataclasses.replace(base, **facts)


def workstation() -> Machine:
    """Ubuntu, one RTX 4090."""
    return Machine(
        system=LINUX,
        cpu=cpu(32, name="AMD Ryzen 9 7950X 16-Core Processor"),
        memory=memory(64),
        limits=LIMITS,
        kernel=kernel(),
        container=Container(),
        gpus=(gpu(),),
        gpu_pairs=(),
        drivers=(driver(),),
        disks=disks(),
        network_ports=(),
        libraries=(),
        interpreter=interpreter(torch()),
        environment={},
        recorded="2026-11-21",
    )


def laptop() -> Machine:
    """Ubuntu, an RTX 4070 Laptop GPU on battery-friendly settings, a small memory."""
    mobile = gpu(
        name="NVIDIA GeForce RTX 4070 Laptop GPU",
        pci_id="10de:2820",
        memory_bytes=8 * GIB,
        memory_used_bytes=GIB // 4,
        pcie_width=8,
        pcie_width_max=8,
        power_limit_w=80.0,
        power_limit_default_w=80.0,
        power_limit_max_w=140.0,
        clock_sm_max_mhz=3105,
        display=True,
    )
    intel = Gpu(
        vendor="intel",
        name="Intel Raptor Lake-P [Iris Xe Graphics]",
        pci_address="0000:00:02.0",
        pci_id="8086:a7a0",
        kernel_driver="i915",
        shared_memory=True,
    )
    whole = changed(
        workstation(),
        memory=memory(32),
        gpus=(mobile, intel),
        disks=disks(500),
        cpu=cpu(16, name="13th Gen Intel(R) Core(TM) i7-13700H"),
    )
    machine: Machine = changed(whole, cpu__governor="powersave", cpu__scaling_driver="intel_pstate")
    return machine


def windows() -> Machine:
    """Windows 11, one RTX 4090 that also drives the screens."""
    card = gpu(kernel_driver=None, display=True, persistence_mode=None, numa_node=None)
    python = interpreter(
        torch("2.9.1", "cu128", location="C:\\Users\\user\\venv\\Lib\\site-packages"),
        executable="C:\\Users\\user\\venv\\Scripts\\python.exe",
        compiler=None,
        compiler_searched=False,
        packages=(Package("torch", "2.9.1", "C:\\Users\\user\\venv\\Lib\\site-packages", "pip"),),
    )
    return Machine(
        system=WINDOWS,
        cpu=cpu(32, name="AMD Ryzen 9 7950X 16-Core Processor", governor=None, scaling_driver=None),
        memory=memory(64, shm_bytes=None, shm_free_bytes=None),
        gpus=(card,),
        gpu_pairs=(),
        drivers=(
            driver("581.80", kernel_version=None, installed_version=None, library_version=None),
        ),
        disks=disks(file_system="NTFS"),
        libraries=(),
        interpreter=python,
        environment={},
        recorded="2026-11-21",
    )


def wsl() -> Machine:
    """Ubuntu in WSL2 on Windows with an RTX 4090."""
    card = gpu(kernel_driver=None, pci_id=None, numa_node=None, display=True)
    files = (DeviceFile("/dev/dxg", True, True, True, "root", "0666"),)
    machine: Machine = changed(
        workstation(),
        system__release="5.15.167.4-microsoft-standard-WSL2",
        container=Container(wsl=2, gpu_passed_through=True, virtual_machine="microsoft"),
        gpus=(card,),
        drivers=(
            driver(
                "581.80",
                kernel_version=None,
                installed_version=None,
                library_version=None,
                open_kernel_module=None,
            ),
        ),
        kernel=kernel(
            modules=(),
            nvidia_module_on_disk=None,
            nvidia_module_for=None,
            headers=None,
            device_files=files,
            xids=None,
        ),
        memory=memory(32),
        cpu__governor=None,
        cpu__scaling_driver=None,
    )
    return machine


def node(name: str, count: int, **facts: Any) -> Machine:
    """A server with `count` GPUs joined by NVLink, and InfiniBand."""
    gpus = tuple(
        data_center_gpu(index, name, numa_node=index * 2 // count, **facts)
        for index in range(count)
    )
    pairs = tuple(
        GpuPair(first, second, "nvlink")
        for first in range(count)
        for second in range(first + 1, count)
    )
    loaded = ("nvidia", "nvidia_uvm", "nvidia_peermem", "mlx5_core", "ib_core")
    machine: Machine = changed(
        workstation(),
        system__distribution_version="22.04",
        system__distribution_name="Ubuntu 22.04.5 LTS",
        system__libc="glibc 2.35",
        cpu=cpu(192),
        memory=memory(2048),
        kernel=kernel(count, modules=loaded, numa_nodes=2, fabric_manager=True),
        gpus=gpus,
        gpu_pairs=pairs,
        disks=disks(7000, file_system="xfs"),
        network_ports=tuple(
            NetworkPort(f"mlx5_{index}/1", "active", 400.0, "infiniband") for index in range(8)
        ),
        interpreter__torch__device_count=count,
    )
    return machine


def a100() -> Machine:
    """Eight A100 80 GB."""
    return node(
        "NVIDIA A100-SXM4-80GB",
        8,
        pci_id="10de:20b2",
        compute_capability=(8, 0),
        memory_bytes=80 * GIB,
        nvlinks=12,
        nvlinks_down=0,
        nvlink_fabric="not_supported",
        power_limit_w=400.0,
        power_limit_default_w=400.0,
        power_limit_max_w=400.0,
        clock_sm_max_mhz=1410,
    )


def h100() -> Machine:
    """Eight H100 80 GB."""
    return node(
        "NVIDIA H100 80GB HBM3",
        8,
        pci_id="10de:2330",
        compute_capability=(9, 0),
        memory_bytes=80 * GIB,
        pcie_generation_max=5,
        pcie_generation_card=5,
        nvlinks=18,
        nvlinks_down=0,
        nvlink_fabric="completed",
        power_limit_w=700.0,
        power_limit_default_w=700.0,
        power_limit_max_w=700.0,
        clock_sm_max_mhz=1980,
    )


def h200() -> Machine:
    """Eight H200."""
    machine: Machine = changed(
        h100(),
        gpus__all__name="NVIDIA H200",
        gpus__all__pci_id="10de:2335",
        gpus__all__memory_bytes=141 * GIB,
    )
    return machine


def container() -> Machine:
    """A Docker container on an L4 machine, with --gpus all and a large /dev/shm."""
    card = data_center_gpu(
        0,
        "NVIDIA L4",
        pci_id="10de:27b8",
        memory_bytes=23 * GIB,
        power_limit_w=72.0,
        power_limit_default_w=72.0,
        power_limit_max_w=72.0,
    )
    machine: Machine = changed(
        workstation(),
        container=Container(kind="docker", gpu_passed_through=True),
        gpus=(card,),
        system__root=True,
        kernel__user_groups=("root",),
        kernel__nvidia_module_on_disk=None,
        kernel__nvidia_module_for=None,
        kernel__headers=None,
        kernel__dkms=None,
        kernel__xids=None,
        memory=memory(64, shm_bytes=16 * GIB, shm_free_bytes=16 * GIB),
        disks=disks(file_system="overlay"),
        interpreter__virtual_environment=False,
    )
    return machine


def rocm() -> Machine:
    """Eight MI300X with ROCm."""
    gpus = tuple(
        Gpu(
            vendor="amd",
            name="AMD Instinct MI300X",
            index=index,
            pci_address=f"0000:{5 + index:02x}:00.0",
            pci_id="1002:74a1",
            driver_sees=True,
            kernel_driver="amdgpu",
            gfx="gfx942",
            memory_bytes=192 * GIB,
            memory_used_bytes=0,
            pcie_generation=5,
            pcie_generation_max=5,
            pcie_generation_card=5,
            pcie_width=16,
            pcie_width_max=16,
            temperature_c=38,
            power_w=140.0,
            power_limit_w=750.0,
            utilization=0.0,
        )
        for index in range(8)
    )
    files = tuple(
        DeviceFile(path, True, True, True, "render", "0660")
        for path in ("/dev/kfd", *(f"/dev/dri/renderD{128 + index}" for index in range(8)))
    )
    arch = ("gfx90a", "gfx942", "gfx1100")
    machine: Machine = changed(
        workstation(),
        system__distribution_version="22.04",
        system__distribution_name="Ubuntu 22.04.5 LTS",
        system__libc="glibc 2.35",
        cpu=cpu(192),
        memory=memory(2048),
        kernel=kernel(
            modules=("amdgpu",),
            nvidia_module_on_disk=False,
            nvidia_module_for=(),
            device_files=files,
            numa_nodes=2,
            xids=None,
        ),
        gpus=gpus,
        drivers=(Driver(vendor="amd", version="6.12.12", kernel_version="6.12.12", rocm="6.4.1"),),
        interpreter=interpreter(
            torch(
                "2.9.1",
                "rocm6.4",
                hip="6.4.43484",
                cuda_available=True,
                device_count=8,
                arch_list=arch,
            ),
            packages=(
                Package("torch", "2.9.1+rocm6.4"),
                Package("pytorch-triton-rocm", "3.5.1"),
            ),
        ),
    )
    return machine


def mac() -> Machine:
    """A MacBook Pro with M3 Max."""
    python = interpreter(
        dataclasses.replace(
            torch("2.9.1", "cpu"),
            build=None,
            mps_built=True,
            mps_available=True,
        ),
        compiler="/usr/bin/clang++",
        executable="/opt/homebrew/bin/python3.12",
    )
    return Machine(
        system=MACOS,
        cpu=Cpu(
            name="Apple M3 Max",
            architecture="arm64",
            cores=16,
            logical_cores=16,
            physical_cores=16,
            affinity_cores=None,
        ),
        memory=memory(64, shm_bytes=None, shm_free_bytes=None),
        limits=Limits(open_files=10240, open_files_hard=-1, processes=10666),
        gpus=(
            Gpu(
                vendor="apple",
                name="Apple M3 Max",
                index=0,
                driver_sees=True,
                memory_bytes=64 * GIB,
                shared_memory=True,
            ),
        ),
        gpu_pairs=(),
        drivers=(Driver(vendor="apple", version="15.1"),),
        disks=disks(file_system="apfs"),
        libraries=(),
        interpreter=python,
        environment={},
        recorded="2026-11-21",
    )


def cpu_server() -> Machine:
    """A server without any GPU, and torch for CPU."""
    machine: Machine = changed(
        workstation(),
        cpu=cpu(64, name="Intel(R) Xeon(R) Platinum 8488C", physical_cores=32),
        memory=memory(256),
        gpus=(),
        drivers=(),
        kernel=kernel(
            0,
            modules=(),
            nvidia_module_on_disk=False,
            nvidia_module_for=(),
            device_files=(),
        ),
        interpreter=interpreter(torch("2.9.1", "cpu")),
    )
    return machine


HEALTHY = {
    "workstation": workstation,
    "laptop": laptop,
    "windows": windows,
    "wsl": wsl,
    "a100-node": a100,
    "h100-node": h100,
    "h200-node": h200,
    "container": container,
    "rocm-node": rocm,
    "mac": mac,
    "cpu-server": cpu_server,
}
