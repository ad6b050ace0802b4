"""Machines whose torch, Python or variables are wrong; each with the codes that must show."""

from __future__ import annotations

from typing import Any

from flatout.nouns.interpreter import Package
from flatout.nouns.machine import DeviceFile, Machine
from machines.healthy import (
    a100,
    changed,
    cpu_server,
    gpu,
    h100,
    interpreter,
    laptop,
    mac,
    rocm,
    torch,
    windows,
    workstation,
)
from machines.software import (
    GTX_1080,
    RTX_5090,
    SITE,
    TO_HOPPER,
    UNKNOWN,
    USER_SITE,
    amd_desktop,
    arc,
    library,
    not_importable,
    with_packages,
    with_torch,
)


def import_machines() -> dict[str, tuple[Machine, tuple[str, ...]]]:
    """torch is missing, or cannot be imported."""
    outside = changed(
        workstation(),
        interpreter=interpreter(
            None, executable="/usr/bin/python3", virtual_environment=False, managed_by="system"
        ),
        environment={"VIRTUAL_ENV": "/home/user/venv"},
    )
    no_runtime = (
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
    )
    symbol = f"ImportError: {SITE}/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister"
    no_dll = (
        "OSError: [WinError 126] The specified module could not be found. Error loading "
        '"C:\\Users\\user\\venv\\Lib\\site-packages\\torch\\lib\\c10.dll" or one of its '
        "dependencies."
    )
    no_numpy = "ImportError: numpy.core.multiarray failed to import"
    return {
        "torch-missing": (changed(workstation(), interpreter=interpreter(None)), ("ENV020",)),
        "torch-missing-without-gpu": (
            changed(cpu_server(), interpreter=interpreter(None)),
            ("ENV020",),
        ),
        "python-outside-environment": (outside, ("ENV052",)),
        "cuda-library-missing": (not_importable(workstation(), no_runtime), ("ENV022",)),
        "library-path-shadows-nccl": (
            not_importable(workstation(), symbol, environment={"LD_LIBRARY_PATH": "/opt/nccl/lib"}),
            ("ENV022",),
        ),
        "windows-without-runtime": (not_importable(windows(), no_dll), ("ENV022",)),
        "torch-and-numpy-2": (
            not_importable(with_torch(workstation(), "2.2.2", "cu121"), no_numpy),
            ("ENV022",),
        ),
    }


def build_machines() -> dict[str, tuple[Machine, tuple[str, ...]]]:
    """The wrong build, or the wrong release, of torch."""
    windows_cpu = changed(
        windows(),
        interpreter__torch=torch("2.9.1", "cpu", location="C:\\Users\\user\\venv"),
    )
    both = changed(
        with_torch(workstation(), "2.9.1", "cu128", device_count=2),
        gpus=(gpu(), gpu(1, **GTX_1080, display=True)),
        kernel=changed(a100().kernel, numa_nodes=1, fabric_manager=None, modules=("nvidia",)),
    )
    both = changed(both, kernel__device_files=workstation().kernel.device_files)
    rosetta = changed(
        mac(),
        system__architecture="x86_64",
        system__rosetta=True,
        interpreter=interpreter(None, compiler="/usr/bin/clang++"),
    )
    old_mac = changed(
        mac(),
        system__distribution_version="13.7.4",
        system__distribution_name="macOS 13.7.4",
        interpreter__torch__version="2.10.0",
        interpreter__torch__mps_available=False,
    )
    return {
        "torch-cpu-only": (with_torch(workstation(), build="cpu"), ("ENV021",)),
        "torch-cpu-only-on-windows": (windows_cpu, ("ENV021",)),
        "torch-cpu-only-on-rocm": (with_torch(rocm(), build="cpu"), ("ENV021",)),
        "rtx-5090-with-old-torch": (
            changed(
                with_torch(workstation(), "2.5.1", "cu124", arch_list=TO_HOPPER),
                gpus=(gpu(**RTX_5090),),
            ),
            ("ENV023",),
        ),
        "gtx-1080-with-new-torch": (changed(workstation(), gpus=(gpu(**GTX_1080),)), ("ENV023",)),
        "old-gpu-beside-new-one": (both, ("ENV023",)),
        "rocm-torch-on-nvidia": (
            with_torch(workstation(), "2.9.1", "rocm6.4", hip="6.4.43484"),
            ("ENV021",),
        ),
        "cuda-torch-on-amd": (
            with_torch(amd_desktop(), cuda_available=False, device_count=0),
            ("ENV021",),
        ),
        "radeon-without-kernels": (
            amd_desktop(
                "AMD Radeon RX 6700 XT", "gfx1031", interpreter__torch__arch_list=("gfx1030",)
            ),
            ("ENV023",),
        ),
        "mac-under-rosetta": (rosetta, ("ENV038",)),
        "mac-with-old-macos": (old_mac, ("ENV038",)),
        "arc-with-cpu-torch": (arc(), ("ENV021",)),
    }


def system_machines() -> dict[str, tuple[Machine, tuple[str, ...]]]:
    """Python, the system, compilers, drivers of AMD."""
    pythons_end = changed(
        with_torch(workstation(), "2.8.0", "cu128"), interpreter__version="3.9.19"
    )
    centos = changed(
        workstation(),
        interpreter=interpreter(None, version="3.11.4"),
        system__distribution="centos",
        system__distribution_like=("rhel", "fedora"),
        system__distribution_version="7",
        system__distribution_name="CentOS Linux 7 (Core)",
        system__libc="glibc 2.17",
    )
    alpine = changed(
        cpu_server(),
        interpreter=interpreter(None),
        system__distribution="alpine",
        system__distribution_like=(),
        system__distribution_version="3.22.1",
        system__distribution_name="Alpine Linux v3.22",
        system__libc="musl 1.2.5",
    )
    blind = {
        "interpreter__torch__cuda_available": False,
        "interpreter__torch__device_count": 0,
    }
    closed = tuple(
        DeviceFile(path, True, False, False, "render", "0660")
        for path in ("/dev/kfd", "/dev/dri/renderD128")
    )
    return {
        "no-compiler": (changed(workstation(), interpreter__compiler=None), ("ENV031",)),
        "no-python-headers": (changed(workstation(), interpreter__headers=False), ("ENV031",)),
        "no-triton": (
            changed(workstation(), interpreter__packages=(Package("torch", "2.9.1", SITE, "pip"),)),
            ("ENV031",),
        ),
        "python-left-behind": (pythons_end, ("ENV034",)),
        "python-too-new": (
            changed(workstation(), interpreter=interpreter(None, version="3.16.0")),
            ("ENV034",),
        ),
        "old-glibc": (centos, ("ENV034",)),
        "alpine": (alpine, ("ENV034",)),
        "amd-device-closed": (
            amd_desktop(kernel__device_files=closed, kernel__user_groups=("user",), **blind),
            ("ENV053",),
        ),
        "amdgpu-not-loaded": (
            amd_desktop(
                gpus__0__kernel_driver=None,
                gpus__0__driver_sees=False,
                kernel__modules=(),
                kernel__device_files=(),
                drivers=(),
                **blind,
            ),
            ("ENV053",),
        ),
    }


def library_machines() -> dict[str, tuple[Machine, tuple[str, ...]]]:
    """Toolkits and libraries; copies and mixtures of packages."""
    cudnn = with_packages(
        workstation(),
        Package("nvidia-cudnn-cu12", "9.10.2.21", SITE, "pip"),
        libraries=(library("cudnn", "9.1.0"),),
        environment={"LD_LIBRARY_PATH": "/opt/nvidia/lib"},
    )
    nccl = with_packages(
        a100(),
        Package("nvidia-nccl-cu12", "2.27.5", SITE, "pip"),
        libraries=(library("nccl", "2.18.3"),),
        environment={"LD_PRELOAD": "/opt/nvidia/lib/libnccl.so.2.18.3"},
    )
    copies = (
        Package("pytorch", "2.5.1", "/home/user/miniconda3/envs/job", "conda"),
        Package("torch", "2.9.1", "/home/user/miniconda3/envs/job/lib/python3.12", "pip"),
    )
    in_conda = changed(
        workstation(),
        interpreter__executable="/home/user/miniconda3/envs/job/bin/python",
        interpreter__conda=True,
        interpreter__managed_by="conda",
        interpreter__virtual_environment=False,
    )
    in_user_site = changed(
        in_conda,
        interpreter__user_site=True,
        interpreter__packages=(
            Package("torch", "2.9.1", USER_SITE, "pip"),
            Package("triton", "3.5.1", USER_SITE, "pip"),
        ),
    )
    return {
        "system-cudnn-in-front": (cudnn, ("ENV028",)),
        "nccl-preloaded": (nccl, ("ENV028",)),
        "torch-from-conda-and-pip": (
            changed(in_conda, interpreter__duplicates=copies),
            ("ENV030",),
        ),
        "user-site-in-front": (in_user_site, ("ENV030",)),
        "torchvision-of-another-release": (
            with_packages(workstation(), Package("torchvision", "0.20.1", SITE, "pip")),
            ("ENV051",),
        ),
    }


def variable_machines() -> dict[str, tuple[Machine, tuple[str, ...]]]:
    """Environment variables, and a driver that lost its state."""
    asleep = changed(
        laptop(),
        interpreter__torch__cuda_available=False,
        interpreter__torch__device_count=0,
        interpreter__torch__cuda_error=UNKNOWN,
    )
    debugging = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO", "TORCH_LOGS": "+dynamo"}

    def set_to(machine: Machine, **variables: str) -> Any:
        return changed(machine, environment=variables)

    return {
        "laptop-after-suspend": (asleep, ("ENV025",)),
        "left-on-from-debugging": (set_to(workstation(), **debugging), ("ENV045",)),
        "compile-switched-off": (set_to(workstation(), TORCH_COMPILE_DISABLE="1"), ("ENV045",)),
        "one-thread": (set_to(cpu_server(), OMP_NUM_THREADS="1"), ("ENV045",)),
        "more-threads-than-cores": (set_to(workstation(), OMP_NUM_THREADS="128"), ("ENV045",)),
        "nvlink-switched-off": (set_to(h100(), NCCL_P2P_DISABLE="1"), ("ENV045",)),
        "tf32-forbidden": (set_to(a100(), NVIDIA_TF32_OVERRIDE="0"), ("ENV045",)),
    }


MACHINES: dict[str, tuple[Machine, tuple[str, ...]]] = {
    **import_machines(),
    **build_machines(),
    **system_machines(),
    **library_machines(),
    **variable_machines(),
}
