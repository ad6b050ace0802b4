"""Clouds and clusters, where one gets a part of a machine; many of them quite healthy."""

from __future__ import annotations

from flatout.nouns.gpu import Driver, Gpu, GpuPair
from flatout.nouns.machine import (
    Container,
    DeviceFile,
    Library,
    Machine,
    Memory,
    NetworkPort,
)
from machines.healthy import (
    GIB,
    a100,
    changed,
    container,
    cpu,
    data_center_gpu,
    device_files,
    driver,
    gpu,
    h100,
    interpreter,
    memory,
    torch,
    workstation,
)


def t4(index: int = 0) -> Gpu:
    """As clouds rent it out."""
    watts = dict.fromkeys(("power_limit_w", "power_limit_default_w", "power_limit_max_w"), 70.0)
    return data_center_gpu(
        index,
        "Tesla T4",
        pci_id="10de:1eb8",
        compute_capability=(7, 5),
        memory_bytes=15 * GIB,
        pcie_generation_max=3,
        pcie_generation_card=3,
        clock_sm_max_mhz=1590,
        persistence_mode=False,
        kernel_driver=None,
        **watts,
    )


def notebook_service() -> Machine:
    """A free notebook: a container with a T4 and two hardware threads."""
    libraries = (
        Library("cudnn", "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.2.1", "9.2.1", "loader"),
        Library("nccl", "/usr/lib/x86_64-linux-gnu/libnccl.so.2.22.3", "2.22.3", "loader"),
        Library("cuda", "/usr/lib64-nvidia/libcuda.so.550.54.15", "550.54.15", "library_path"),
    )
    memory_ = Memory(
        total_bytes=13 * GIB - GIB // 4,
        available_bytes=11 * GIB,
        swap_total_bytes=0,
        swap_used_bytes=0,
        shm_bytes=6 * GIB,
        shm_free_bytes=6 * GIB,
    )
    machine: Machine = changed(
        container(),
        container__virtual_machine="kvm",
        gpus=(t4(),),
        cpu=cpu(2, governor=None, scaling_driver=None),
        memory=memory_,
        drivers=(driver("550.54.15", "12.4", installed_version=None, open_kernel_module=False),),
        interpreter=interpreter(
            torch("2.8.0", "cu126"), executable="/usr/bin/python3", virtual_environment=False
        ),
        environment={
            "LD_LIBRARY_PATH": "/usr/lib64-nvidia",
            "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        },
        libraries=libraries,
    )
    return machine


def notebook_service_with_two() -> Machine:
    """The like with two T4."""
    machine: Machine = changed(
        notebook_service(),
        gpus=(t4(0), t4(1)),
        gpu_pairs=(GpuPair(0, 1, "hostbridge"),),
        memory=memory(31, swap_total_bytes=0, limit_bytes=30 * GIB),
        kernel__device_files=device_files(2),
        interpreter__torch__device_count=2,
    )
    return machine


def withheld(*numbers: int) -> tuple[DeviceFile, ...]:
    """GPUs' files that a device cgroup closes, whatever their mode says."""
    return tuple(
        DeviceFile(f"/dev/nvidia{number}", True, False, False, "root", "0666") for number in numbers
    )


def job_with_one_gpu() -> Machine:
    """A job of Slurm on a node with eight A100: it was given one GPU and 16 cores."""
    others = tuple(
        Gpu(
            vendor="nvidia",
            name="NVIDIA A100-SXM4-80GB",
            pci_id="10de:20b2",
            pci_address=f"0000:{0x40 + number:02x}:00.0",
            driver_sees=False,
            kernel_driver="nvidia",
        )
        for number in range(1, 8)
    )
    files = (*device_files(1), *withheld(*range(1, 8)))
    machine: Machine = changed(
        a100(),
        gpus=(*a100().gpus[:1], *others),  # type: ignore[index]
        gpu_pairs=(),
        cpu=cpu(192),
        memory=memory(2048, limit_bytes=768 * GIB),
        environment={"CUDA_VISIBLE_DEVICES": "0"},
        kernel__device_files=files,
        interpreter__torch__device_count=1,
    )
    return machine


def job_without_gpu() -> Machine:
    """A job of Slurm that did not ask for a GPU."""
    job = job_with_one_gpu()
    machine: Machine = changed(
        job,
        gpus=job.gpus[1:],  # type: ignore[index]
        environment={},
        drivers=(driver(smi_error="No devices were found"),),
        kernel__device_files=(*withheld(*range(8)), *device_files(0)),
        interpreter__torch__cuda_available=False,
        interpreter__torch__device_count=0,
        interpreter__torch__cuda_error="No CUDA GPUs are available",
    )
    return machine


def virtual_gpu() -> Machine:
    """A virtual machine with a slice of an A40, and a driver that is too old for torch."""
    unknown = dict.fromkeys(
        (
            "pcie_generation",
            "pcie_generation_max",
            "pcie_generation_card",
            "pcie_width",
            "pcie_width_max",
            "power_w",
            "power_limit_w",
            "power_limit_default_w",
            "power_limit_max_w",
            "temperature_c",
            "temperature_slowdown_c",
            "throttles",
        )
    )
    machine: Machine = changed(
        workstation(),
        container=Container(virtual_machine="vmware"),
        cpu=cpu(8, governor=None, scaling_driver=None),
        gpus=(gpu(name="NVIDIA A40-24Q", compute_capability=(8, 6), **unknown),),
        drivers=(driver("470.256.02", "11.4", open_kernel_module=False),),
        interpreter__torch__cuda_available=False,
        interpreter__torch__device_count=0,
        interpreter__torch__cuda_error="The NVIDIA driver on your system is too old (found "
        "version 11040).",
    )
    return machine


def pod_with_slice() -> Machine:
    """A Kubernetes pod with a MIG slice of 20 GB, 8 cores and 64 GiB."""
    card = data_center_gpu(
        0,
        "NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        memory_bytes=80 * GIB,
        memory_used_bytes=None,
        utilization=None,
        mig=True,
        mig_slices=("2g.20gb",),
        power_limit_w=400.0,
        power_limit_default_w=400.0,
    )
    machine: Machine = changed(
        container(),
        container=Container(kind="kubernetes", gpu_passed_through=True),
        gpus=(card,),
        memory=memory(1024, limit_bytes=64 * GIB),
        cpu=cpu(8, logical_cores=128, physical_cores=64, affinity_cores=128, quota_cores=8.0),
    )
    return machine


def node_with_spare_ports() -> Machine:
    """A DGX H100: beside eight ports for training others for storage, one of them not cabled."""
    others = (
        NetworkPort("mlx5_8/1", "active", 100.0, "ethernet"),
        NetworkPort("mlx5_10/1", "active", 400.0, "infiniband"),
        NetworkPort("mlx5_11/1", "down", 40.0, "infiniband"),
    )
    machine: Machine = changed(h100(), network_ports=(*(h100().network_ports or ()), *others))
    return machine


def singularity_without_nv() -> Machine:
    """A Singularity container shows the host's devices; the libraries come with --nv alone."""
    machine: Machine = changed(
        container(),
        container=Container(kind="singularity", gpu_passed_through=True),
        system__root=False,
        gpus__0__driver_sees=None,
        gpus__0__index=None,
        drivers=(
            Driver(
                vendor="nvidia",
                kernel_version="580.95.05",
                nvml_error="NVML Shared Library Not Found",
            ),
        ),
        interpreter__torch__cuda_available=False,
        interpreter__torch__device_count=0,
        interpreter__torch__cuda_error="Found no NVIDIA driver on your system.",
    )
    return machine


MACHINES: dict[str, tuple[Machine, tuple[str, ...]]] = {
    "notebook-service": (notebook_service(), ("ENV064", "HW010")),
    "notebook-service-two-t4": (notebook_service_with_two(), ("HW010",)),
    "slurm-one-gpu": (job_with_one_gpu(), ()),
    "slurm-no-gpu": (job_without_gpu(), ("ENV006",)),
    "vgpu-old-driver": (virtual_gpu(), ("ENV005",)),
    "pod-with-slice": (pod_with_slice(), ("ENV063", "HW009")),
    "node-with-spare-ports": (node_with_spare_ports(), ("ENV073",)),
    "singularity-without-nv": (singularity_without_nv(), ("ENV019",)),
}
