"""Limits, memory, disks and networks."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, commands, each, each_of, findings, only, told
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuPair
from machines import broken_shared
from machines.healthy import (
    GIB,
    a100,
    changed,
    container,
    cpu_server,
    gpu,
    h100,
    mac,
    memory,
    windows,
    workstation,
    wsl,
)

LOW = {"limits__locked_memory_bytes": 64 * 1024}
FULL = {"memory__swap_used_bytes": 2 * GIB, "memory__available_bytes": 3 * GIB}
PAIR = {
    "gpus": (gpu(0), gpu(1)),
    "gpu_pairs": (GpuPair(0, 1, "hostbridge"),),
    "kernel__iommu": True,
}


def test_swapping_with_a_full_memory() -> None:
    finding = only("ENV064", changed(workstation(), **FULL))
    assert finding.severity is Severity.WARNING
    assert "swap used 2.0 GiB of 8.0 GiB" in finding.evidence
    assert "available 3.0 GiB of 64 GiB" in finding.evidence
    assert "swapoff" not in commands(finding), "what is swapped out would not fit"


def test_two_file_systems_are_two_findings() -> None:
    machine = changed(workstation(), disks__0__free_bytes=5 * GIB, disks__1__free_bytes=6 * GIB)
    assert len(findings("ENV066", machine)) == 2


def test_a_windows_drive_in_wsl() -> None:
    facts = {"disks__0__path": "/mnt/c/job", "disks__0__file_system": "9p"}
    finding = only("ENV066", changed(wsl(), **facts))
    assert finding.severity is Severity.WARNING
    assert "cp -r /mnt/c/job" in commands(finding)
    assert findings("ENV066", changed(workstation(), **facts)) == (), (
        "9p elsewhere is a virtual disk"
    )


def test_one_of_eight_is_down() -> None:
    facts = {"network_ports__3__state": "down", "network_ports__3__rate_gbit_per_s": None}
    finding = only("ENV073", changed(h100(), **facts))
    assert finding.severity is Severity.WARNING
    assert "mlx5_3/1: down; 7 of 8 ports active at 400 Gbit/s" in finding.evidence
    assert "ibstat mlx5_3" in commands(finding)
    assert "mlx5_3:1" not in commands(finding), "it is left out of NCCL_IB_HCA"


TOLD = [
    told("few are a warning and the usual 1024 a note", "ENV061",
         changed(workstation(), limits__open_files=256), "256", "1048576", "ulimit -n 65536",
         severity=Severity.WARNING),
    told("few are a warning and the usual 1024 a note: 2", "ENV061",
         changed(workstation(), limits__open_files=1024), severity=Severity.NOTE),
    told("not beyond the hard limit", "ENV061",
         changed(workstation(), limits__open_files=1024, limits__open_files_hard=4096),
         "ulimit -n 4096"),
    told("on macos the usual limit is a note and the cure is possible", "ENV061",
         changed(mac(), limits__open_files=256), "ulimit -n 10240", severity=Severity.NOTE),
    told("a high hard limit stays", "ENV061",
         changed(workstation(), limits__open_files=99), "* soft nofile 65536"),
    told("a high hard limit stays: 2", "ENV061",
         changed(workstation(), limits__open_files=99, limits__open_files_hard=4096),
         "* - nofile 65536"),
    told("with active ports", "ENV061",
         changed(h100(), **LOW), "64 KiB", "mlx5_0/1", "memlock unlimited",
         severity=Severity.WARNING),
    told("low on linux", "ENV061",
         changed(workstation(), limits__processes=1024), "1024; 32 hardware threads",
         "limits.d/processes.conf", severity=Severity.WARNING),
    told("less than the gpu", "ENV064",
         changed(workstation(), memory=memory(16)), "less than the GPU has",
         "16 GiB; GPU memory 24 GiB", severity=Severity.WARNING),
    told("less than eight gibibytes", "ENV064",
         changed(cpu_server(), memory=memory(4)), "4.0 GiB", severity=Severity.WARNING),
    told("a limit counts like memory", "ENV064",
         changed(container(), memory__limit_bytes=8 * GIB), "limited to 8.0 GiB by the cgroup",
         "docker run --memory=57g"),
    told("less than all gpus together is a note", "ENV064",
         changed(h100(), memory=memory(256)), "640 GiB in 8", severity=Severity.NOTE),
    told("much left in swap is a note and can be brought back", "ENV064",
         changed(workstation(), memory__swap_used_bytes=7 * GIB), "sudo swapoff -a",
         severity=Severity.NOTE),
    told("macos swaps by habit", "ENV064", changed(mac(), **FULL), severity=Severity.WARNING),
    told("one finding for one file system", "ENV066",
         changed(workstation(), disks__all__free_bytes=5 * GIB), "5.0 GiB",
         "/home/user/job, /tmp, /home/user/.cache (ext4): 5.0 GiB free", "pip cache purge",
         "TMPDIR", severity=Severity.WARNING),
    told("almost nothing is an error", "ENV066",
         changed(workstation(), disks__0__free_bytes=GIB // 2),
         "du -xh --max-depth=1 /home/user/job", severity=Severity.ERROR, never=("pip cache",)),
    told("a path with a space is quoted", "ENV066",
         changed(workstation(), disks__0__free_bytes=1, disks__0__path="/mnt/my data"),
         "'/mnt/my data'"),
    told("a network file system is a note", "ENV066",
         changed(workstation(), disks__0__network=True, disks__0__file_system="nfs4"), "nfs4",
         severity=Severity.NOTE),
    told("the shell ends in the copy", "ENV066",
         changed(wsl(), disks__0__path="/mnt/c/my data/job", disks__0__file_system="9p"),
         'cp -r \'/mnt/c/my data/job\' "$HOME/" && cd "$HOME"/job'),
    told("too few for the gpus", "ENV063",
         changed(a100(), cpu__affinity_cores=8), "affinity 8, machine 192 hardware threads",
         "taskset -cp 0-191 $$", severity=Severity.WARNING),
    told("a fair part is a note", "ENV063",
         changed(workstation(), cpu__affinity_cores=8), severity=Severity.NOTE),
    told("variables that pin are told and unset", "ENV063",
         changed(workstation(), cpu__affinity_cores=1, environment={"OMP_PROC_BIND": "true"}),
         "OMP_PROC_BIND=true", "unset OMP_PROC_BIND"),
    told("a slow one stands out", "ENV073",
         changed(h100(), network_ports__7__rate_gbit_per_s=100.0),
         "mlx5_7/1: active at 100 Gbit/s"),
    told("a port beyond one for each gpu is a note", "ENV073",
         broken_shared.node_with_spare_ports(), "InfiniBand mlx5_11/1 is down",
         "9 of 10 ports active", "export NCCL_IB_HCA='=mlx5_0:1,", severity=Severity.NOTE),
    told("title says slow and the count leaves it out", "ENV073",
         changed(h100(), network_ports__7__rate_gbit_per_s=100.0), "InfiniBand mlx5_7/1 is slow",
         "7 of 8 ports active at 400 Gbit/s"),
    told("each system has its own commands", "ENV066",
         changed(windows(), disks__all__free_bytes=5 * GIB), "Get-ChildItem"),
    told("each system has its own commands: 2", "ENV066",
         changed(mac(), disks__all__free_bytes=5 * GIB), "du -xh -d 1"),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


SILENT: dict[str, list[Any]] = {
    "ENV061": [
        # silent where there are enough or no limit
        changed(workstation(), limits__open_files=4096),
        changed(workstation(), limits__open_files=-1),
        # silent without active ports
        changed(workstation(), **LOW),
        changed(h100(), network_ports__all__state="down", **LOW),
        # silent without a limit
        changed(h100(), limits__locked_memory_bytes=2**30),
        # silent elsewhere and without a limit
        changed(mac(), limits__processes=1000),
        changed(workstation(), limits__processes=-1),
        changed(workstation(), limits__processes=4096),
    ],
    "ENV063": [
        # silent with a quota or half of the cores
        changed(container(), cpu__affinity_cores=4, cpu__quota_cores=4.0),
        changed(workstation(), cpu__affinity_cores=16),
    ],
    "ENV064": [
        # memory sold as eight gibibytes is enough
        changed(cpu_server(), memory=memory(8), memory__total_bytes=int(7.6 * GIB)),
        # macos swaps by habit
        changed(mac(), memory__swap_used_bytes=7 * GIB),
        # silent for little
        changed(workstation(), memory__swap_used_bytes=GIB // 4, memory__available_bytes=GIB),
        changed(workstation(), memory__swap_used_bytes=GIB),
        # shared memory is no gpu memory
        changed(mac(), memory__total_bytes=32 * GIB),
    ],
    "ENV066": [
        # silent for a small disk with space
        changed(workstation(), disks__all__total_bytes=60 * GIB, disks__all__free_bytes=5 * GIB),
        # only the folder of the job counts
        changed(workstation(), disks__1__network=True),
    ],
    "ENV073": [
        # a port in ethernet mode does not
        changed(
            h100(), network_ports__7__rate_gbit_per_s=25.0, network_ports__7__link_layer="ethernet"
        ),
        # silent where none is in use
        changed(h100(), network_ports__all__state="down"),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
