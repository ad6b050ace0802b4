"""Machines on which the system or the hardware's state is at fault, with the codes expected."""

from __future__ import annotations

import dataclasses
from typing import Any

from flatout.nouns.gpu import GpuPair, GpuProcess
from flatout.nouns.machine import Container, Machine, Xid
from machines.healthy import (
    GIB,
    a100,
    changed,
    container,
    cpu,
    disks,
    gpu,
    h100,
    h200,
    kernel,
    mac,
    memory,
    rocm,
    windows,
    workstation,
    wsl,
)


def small_container() -> Machine:
    """Docker as it starts containers: 64 MB of /dev/shm, and here few processes and a quota."""
    machine: Machine = changed(
        container(),
        memory__shm_bytes=64 * 2**20,
        memory__shm_free_bytes=64 * 2**20,
        memory__limit_bytes=16 * GIB,
        limits__processes=1024,
        limits__open_files=512,
        cpu__quota_cores=4.0,
        cpu__cores=4,
    )
    return machine


def pod() -> Machine:
    """A Kubernetes pod with small /dev/shm on a node with busy neighbours."""
    machine: Machine = changed(
        container(),
        container=Container(kind="kubernetes", gpu_passed_through=True),
        memory__shm_bytes=64 * 2**20,
        memory__shm_free_bytes=60 * 2**20,
        gpus__0__utilization=0.97,
        gpus__0__power_w=71.0,
    )
    return machine


def two_cards(**facts: Any) -> Machine:
    """A workstation with two RTX 4090 and no NVLink."""
    cards = (gpu(0), gpu(1))
    machine: Machine = changed(
        workstation(),
        gpus=cards,
        gpu_pairs=(GpuPair(0, 1, "hostbridge"),),
        kernel=kernel(2),
        memory=memory(128),
        interpreter__torch__device_count=2,
    )
    found: Machine = changed(machine, **facts)
    return found


def ports(machine: Machine, **facts: Any) -> Machine:
    """The machine with its last InfiniBand port changed."""
    *well, last = machine.network_ports or ()
    return dataclasses.replace(machine, network_ports=(*well, dataclasses.replace(last, **facts)))


def shared_server() -> Machine:
    """A server on which a colleague's notebook and run live."""
    people = (
        GpuProcess(41231, "/home/user/venv/bin/python", 31 * GIB),
        GpuProcess(40980, "/usr/bin/jupyter-kernel", 2 * GIB),
    )
    machine: Machine = changed(
        a100(),
        gpus__3__processes=people,
        gpus__3__memory_used_bytes=33 * GIB,
        gpus__3__utilization=0.99,
        gpus__3__power_w=372.0,
        gpus__3__throttles=(),
    )
    return machine


def failing_memory() -> Machine:
    """An A100 whose memory fails, and one that waits for a reset."""
    machine: Machine = changed(
        a100(),
        gpus__2__ecc_uncorrected=3,
        gpus__2__ecc_uncorrected_lifetime=9,
        gpus__2__row_remap_failed=True,
        gpus__5__retirement_pending=True,
        gpus__6__ecc_uncorrected_lifetime=1,
        kernel__xids=(
            Xid(64, "0000:23:00", 1, "64, pid=1234, name=python, DRAM Row Remapping failure"),
            Xid(94, "0000:26:00", 2, "94, pid=99, name=python, Contained: SM (0x1). RST: No"),
        ),
    )
    return machine


def crowded_desktop() -> Machine:
    """A Windows PC whose browser and game fill a third of the card."""
    machine: Machine = changed(
        windows(),
        gpus__0__memory_used_bytes=8 * GIB,
        disks=disks(1800, file_system="NTFS", free_bytes=4 * GIB),
    )
    return machine


def tiny_wsl() -> Machine:
    """WSL with half of a laptop's memory; the job lies on drive C."""
    machine: Machine = changed(wsl(), memory=memory(8), memory__shm_bytes=4 * GIB)
    on_drive: Machine = changed(
        machine,
        disks__0__path="/mnt/c/Users/user/job",
        disks__0__file_system="9p",
    )
    return on_drive


def old_box() -> Machine:
    """An old PC: GTX 1650, few memory, a full disk, a lazy governor."""
    card = gpu(
        name="NVIDIA GeForce GTX 1650",
        pci_id="10de:1f82",
        compute_capability=(7, 5),
        memory_bytes=4 * GIB,
        memory_used_bytes=GIB // 8,
        pcie_generation_max=2,
        pcie_generation_card=3,
        pcie_width=4,
        power_limit_w=75.0,
        power_limit_default_w=75.0,
        power_limit_max_w=75.0,
        clock_sm_max_mhz=2130,
    )
    machine: Machine = changed(
        workstation(),
        gpus=(card,),
        cpu=cpu(
            4,
            name="Intel(R) Core(TM) i5-3470 CPU @ 3.20GHz",
            governor="powersave",
        ),
        memory=memory(4, swap_used_bytes=3 * GIB, available_bytes=GIB // 4),
        disks=disks(500, free_bytes=6 * GIB),
    )
    return machine


def slow_fabric() -> Machine:
    """A node whose last InfiniBand port came up at a quarter of the rate, with low memlock."""
    slow = ports(h100(), rate_gbit_per_s=100.0)
    machine: Machine = changed(slow, limits__locked_memory_bytes=8 * 2**20)
    return machine


def pinned() -> Machine:
    """A job step that was given four cores of 192 and eight GPUs."""
    machine: Machine = changed(
        a100(), cpu__affinity_cores=4, cpu__cores=4, environment={"OMP_PROC_BIND": "close"}
    )
    return machine


def network_home() -> Machine:
    """A cluster's login shell: home on NFS, open files at the distribution's default."""
    machine: Machine = changed(
        a100(),
        limits__open_files=1024,
        disks__0__file_system="nfs4",
        disks__0__network=True,
    )
    return machine


def nvlink_failed() -> Machine:
    """One of eight H100 lost two of its connections."""
    machine: Machine = changed(
        h100(),
        gpus__4__nvlinks=16,
        gpus__4__nvlinks_down=2,
        kernel__xids=(Xid(74, "0000:25:00", 4, "74, pid='<unknown>', NVLink: fatal error"),),
    )
    return machine


def hot_node() -> Machine:
    """One GPU throttles from heat, another from the power supply's brake."""
    machine: Machine = changed(
        h100(),
        gpus__0__temperature_c=88,
        gpus__0__throttles=("hw_slowdown", "hw_thermal_slowdown"),
        gpus__0__clock_sm_mhz=1005,
        gpus__7__throttles=("hw_slowdown", "hw_power_brake_slowdown"),
        gpus__7__clock_sm_mhz=990,
    )
    return machine


def forgotten_settings() -> Machine:
    """A server on which somebody measured: clocks, power and persistence left changed."""
    machine: Machine = changed(
        a100(),
        gpus__all__power_limit_w=250.0,
        gpus__all__persistence_mode=False,
        gpus__0__throttles=("applications_clocks_setting",),
        gpus__0__clock_sm_mhz=1005,
    )
    return machine


def mig_without_slices() -> Machine:
    """An A100 on which MIG was switched on and nothing made."""
    return changed_first(a100(), mig=True)


def changed_first(machine: Machine, **facts: Any) -> Machine:
    """The machine with facts of its first GPU changed."""
    first, *others = machine.gpus or ()
    return dataclasses.replace(machine, gpus=(dataclasses.replace(first, **facts), *others))


def program_fault() -> Machine:
    """A workstation on which a kernel of the user's ran out of its memory."""
    errors = (
        Xid(31, "0000:21:00", 3, "31, pid=7001, name=python, MMU Fault: ENGINE GRAPHICS"),
        Xid(43, "0000:21:00", 3, "43, pid=7001, name=python, Ch 00000008"),
        Xid(13, "0000:21:00", 1, "13, pid=7001, Graphics SM Warp Exception on (GPC 0, TPC 0)"),
    )
    machine: Machine = changed(workstation(), kernel__xids=errors)
    return machine


MACHINES: dict[str, tuple[Machine, tuple[str, ...]]] = {
    "container-small": (small_container(), ("ENV060", "ENV061", "ENV061", "ENV063", "ENV064")),
    "kubernetes-pod": (pod(), ("ENV060", "HW011")),
    "two-cards-at-x8": (two_cards(gpus__all__pcie_width=8), ("HW001",)),
    "windows-crowded": (crowded_desktop(), ("ENV066", "HW011")),
    "wsl-tiny": (tiny_wsl(), ("ENV064", "ENV066")),
    "old-box": (
        old_box(),
        ("ENV064", "ENV064", "ENV066", "HW001", "HW001", "HW014"),
    ),
    "infiniband-port-slow": (slow_fabric(), ("ENV061", "ENV073")),
    "infiniband-port-down": (ports(h200(), state="down", rate_gbit_per_s=None), ("ENV073",)),
    "pinned-to-four-cores": (pinned(), ("ENV063",)),
    "network-home": (network_home(), ("ENV061", "ENV066")),
    "shared-server": (shared_server(), ("HW011", "HW011")),
    "failing-memory": (failing_memory(), ("HW006", "HW006", "HW006", "HW006", "HW008", "HW008")),
    "nvlink-failed": (nvlink_failed(), ("HW008", "HW016")),
    "hot-node": (hot_node(), ("HW003", "HW003")),
    "forgotten-settings": (forgotten_settings(), ("HW003", "HW003", "HW010")),
    "mig-empty": (mig_without_slices(), ("HW009",)),
    "mig-slices": (changed_first(h100(), mig=True, mig_slices=("3g.40gb", "4g.40gb")), ("HW009",)),
    "program-fault": (program_fault(), ("HW008", "HW008", "HW008")),
    "rocm-power-cap": (
        changed(rocm(), gpus__all__power_limit_default_w=750.0, gpus__3__power_limit_w=500.0),
        ("HW003",),
    ),
    "mac-open-files": (changed(mac(), limits__open_files=256), ("ENV061",)),
}
