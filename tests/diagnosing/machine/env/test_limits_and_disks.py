"""Limits, memory, disks and networks."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, each, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuPair
from flatout.nouns.machine import Container
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


def test_few_are_a_warning_and_the_usual_1024_a_note() -> None:
    few = only("ENV061", changed(workstation(), limits__open_files=256))
    assert few.severity is Severity.WARNING
    assert "256" in few.evidence
    assert "1048576" in few.evidence
    assert "ulimit -n 65536" in commands(few)
    usual = only("ENV061", changed(workstation(), limits__open_files=1024))
    assert usual.severity is Severity.NOTE


def test_not_beyond_the_hard_limit() -> None:
    facts = {"limits__open_files": 1024, "limits__open_files_hard": 4096}
    finding = only("ENV061", changed(workstation(), **facts))
    assert "ulimit -n 4096" in commands(finding)


def test_on_macos_the_usual_limit_is_a_note_and_the_cure_is_possible() -> None:
    finding = only("ENV061", changed(mac(), limits__open_files=256))
    assert finding.severity is Severity.NOTE
    assert finding.cure.commands[0] == "ulimit -n 10240"


def test_a_high_hard_limit_stays() -> None:
    assert "* soft nofile 65536" in commands(
        only("ENV061", changed(workstation(), limits__open_files=99))
    )
    low = changed(workstation(), limits__open_files=99, limits__open_files_hard=4096)
    assert "* - nofile 65536" in commands(only("ENV061", low))


def test_with_active_ports() -> None:
    finding = only("ENV061", changed(h100(), **LOW))
    assert finding.severity is Severity.WARNING
    assert "64 KiB" in finding.evidence
    assert "mlx5_0/1" in finding.evidence
    assert "memlock unlimited" in commands(finding)


def test_low_on_linux() -> None:
    finding = only("ENV061", changed(workstation(), limits__processes=1024))
    assert finding.severity is Severity.WARNING
    assert "1024; 32 hardware threads" in finding.evidence
    assert "limits.d/processes.conf" in commands(finding)


def test_less_than_the_gpu() -> None:
    finding = only("ENV064", changed(workstation(), memory=memory(16)))
    assert finding.severity is Severity.WARNING
    assert "less than the GPU has" in finding.title
    assert "16 GiB; GPU memory 24 GiB" in finding.evidence


def test_less_than_eight_gibibytes() -> None:
    finding = only("ENV064", changed(cpu_server(), memory=memory(4)))
    assert finding.severity is Severity.WARNING
    assert "4.0 GiB" in finding.title


def test_a_limit_counts_like_memory() -> None:
    finding = only("ENV064", changed(container(), memory__limit_bytes=8 * GIB))
    assert "limited to 8.0 GiB by the cgroup" in finding.evidence
    assert "docker run --memory=57g" in commands(finding)


def test_less_than_all_gpus_together_is_a_note() -> None:
    finding = only("ENV064", changed(h100(), memory=memory(256)))
    assert finding.severity is Severity.NOTE
    assert "640 GiB in 8" in finding.evidence


def test_memory_sold_as_eight_gibibytes_is_enough() -> None:
    box = changed(cpu_server(), memory=memory(8), memory__total_bytes=int(7.6 * GIB))
    assert findings("ENV064", box) == ()


def test_swapping_with_a_full_memory() -> None:
    finding = only("ENV064", changed(workstation(), **FULL))
    assert finding.severity is Severity.WARNING
    assert "swap used 2.0 GiB of 8.0 GiB" in finding.evidence
    assert "available 3.0 GiB of 64 GiB" in finding.evidence
    assert "swapoff" not in commands(finding), "what is swapped out would not fit"


def test_much_left_in_swap_is_a_note_and_can_be_brought_back() -> None:
    finding = only("ENV064", changed(workstation(), memory__swap_used_bytes=7 * GIB))
    assert finding.severity is Severity.NOTE
    assert "sudo swapoff -a" in commands(finding)


def test_macos_swaps_by_habit() -> None:
    assert findings("ENV064", changed(mac(), memory__swap_used_bytes=7 * GIB)) == ()
    assert only("ENV064", changed(mac(), **FULL)).severity is Severity.WARNING


def test_silent_for_little() -> None:
    little = {"memory__swap_used_bytes": GIB // 4, "memory__available_bytes": GIB}
    assert findings("ENV064", changed(workstation(), **little)) == ()
    assert findings("ENV064", changed(workstation(), memory__swap_used_bytes=GIB)) == ()


def test_one_finding_for_one_file_system() -> None:
    finding = only("ENV066", changed(workstation(), disks__all__free_bytes=5 * GIB))
    assert finding.severity is Severity.WARNING
    assert "5.0 GiB" in finding.title
    assert "/home/user/job, /tmp, /home/user/.cache (ext4): 5.0 GiB free" in finding.evidence
    assert "pip cache purge" in commands(finding)
    assert "TMPDIR" in commands(finding)


def test_almost_nothing_is_an_error() -> None:
    finding = only("ENV066", changed(workstation(), disks__0__free_bytes=GIB // 2))
    assert finding.severity is Severity.ERROR
    assert "du -xh --max-depth=1 /home/user/job" in commands(finding)
    assert "pip cache" not in commands(finding)


def test_two_file_systems_are_two_findings() -> None:
    machine = changed(workstation(), disks__0__free_bytes=5 * GIB, disks__1__free_bytes=6 * GIB)
    assert len(findings("ENV066", machine)) == 2


def test_each_system_has_its_own_commands() -> None:
    full = {"disks__all__free_bytes": 5 * GIB}
    assert "Get-ChildItem" in commands(only("ENV066", changed(windows(), **full)))
    assert "du -xh -d 1" in commands(only("ENV066", changed(mac(), **full)))


def test_silent_for_a_small_disk_with_space() -> None:
    small = {"disks__all__total_bytes": 60 * GIB, "disks__all__free_bytes": 5 * GIB}
    assert findings("ENV066", changed(workstation(), **small)) == ()


def test_a_path_with_a_space_is_quoted() -> None:
    machine = changed(workstation(), disks__0__free_bytes=1, disks__0__path="/mnt/my data")
    assert "'/mnt/my data'" in commands(only("ENV066", machine))


def test_a_turning_disk() -> None:
    finding = only("ENV066", changed(workstation(), disks__0__rotational=True))
    assert finding.severity is Severity.WARNING
    assert "/home/user/job" in finding.evidence
    assert "hard disk" in finding.title


def test_a_network_file_system_is_a_note() -> None:
    facts = {"disks__0__network": True, "disks__0__file_system": "nfs4"}
    finding = only("ENV066", changed(workstation(), **facts))
    assert finding.severity is Severity.NOTE
    assert "nfs4" in finding.evidence


def test_a_windows_drive_in_wsl() -> None:
    facts = {"disks__0__path": "/mnt/c/job", "disks__0__file_system": "9p"}
    finding = only("ENV066", changed(wsl(), **facts))
    assert finding.severity is Severity.WARNING
    assert "cp -r /mnt/c/job" in commands(finding)
    assert findings("ENV066", changed(workstation(), **facts)) == (), (
        "9p elsewhere is a virtual disk"
    )


def test_the_shell_ends_in_the_copy() -> None:
    slow = changed(wsl(), disks__0__path="/mnt/c/my data/job", disks__0__file_system="9p")
    line = 'cp -r \'/mnt/c/my data/job\' "$HOME/" && cd "$HOME"/job'
    assert commands(only("ENV066", slow)) == line


def test_too_few_for_the_gpus() -> None:
    finding = only("ENV063", changed(a100(), cpu__affinity_cores=8))
    assert finding.severity is Severity.WARNING
    assert "affinity 8, machine 192 hardware threads" in finding.evidence
    assert "taskset -cp 0-191 $$" in commands(finding)


def test_a_fair_part_is_a_note() -> None:
    finding = only("ENV063", changed(workstation(), cpu__affinity_cores=8))
    assert finding.severity is Severity.NOTE


def test_variables_that_pin_are_told_and_unset() -> None:
    facts = {"cpu__affinity_cores": 1, "environment": {"OMP_PROC_BIND": "true"}}
    finding = only("ENV063", changed(workstation(), **facts))
    assert "OMP_PROC_BIND=true" in finding.evidence
    assert "unset OMP_PROC_BIND" in commands(finding)


def test_two_cards_without_nvlink() -> None:
    finding = only("ENV071", changed(workstation(), **PAIR))
    assert finding.severity is Severity.WARNING
    assert "2 GPUs, pairs: 1 by hostbridge" in finding.evidence
    assert "iommu=pt" in commands(finding)
    assert "sudo update-grub" in commands(finding)


def test_each_distribution_has_its_own_commands() -> None:
    fedora = {"system__distribution": "fedora", "system__distribution_like": ()}
    assert "grubby" in commands(only("ENV071", changed(workstation(), **PAIR, **fedora)))
    sles = {"system__distribution": "sles", "system__distribution_like": ("suse",)}
    assert "grub2-mkconfig" in commands(only("ENV071", changed(workstation(), **PAIR, **sles)))


def test_silent_in_a_virtual_machine_or_container() -> None:
    inside = {**PAIR, "container": Container(virtual_machine="kvm")}
    assert findings("ENV071", changed(workstation(), **inside)) == ()
    boxed = {**PAIR, "container": Container(kind="docker")}
    assert findings("ENV071", changed(workstation(), **boxed)) == ()


def test_one_of_eight_is_down() -> None:
    facts = {"network_ports__3__state": "down", "network_ports__3__rate_gbit_per_s": None}
    finding = only("ENV073", changed(h100(), **facts))
    assert finding.severity is Severity.WARNING
    assert "mlx5_3/1: down; 7 of 8 ports active at 400 Gbit/s" in finding.evidence
    assert "ibstat mlx5_3" in commands(finding)
    assert "mlx5_3:1" not in commands(finding), "it is left out of NCCL_IB_HCA"


def test_a_slow_one_stands_out() -> None:
    finding = only("ENV073", changed(h100(), network_ports__7__rate_gbit_per_s=100.0))
    assert "mlx5_7/1: active at 100 Gbit/s" in finding.evidence


def test_a_port_in_ethernet_mode_does_not() -> None:
    facts = {"network_ports__7__rate_gbit_per_s": 25.0, "network_ports__7__link_layer": "ethernet"}
    assert findings("ENV073", changed(h100(), **facts)) == ()


def test_a_port_beyond_one_for_each_gpu_is_a_note() -> None:
    finding = only("ENV073", broken_shared.node_with_spare_ports())
    assert finding.severity is Severity.NOTE
    assert "InfiniBand mlx5_11/1 is down" in finding.title
    assert "9 of 10 ports active" in finding.evidence
    assert "export NCCL_IB_HCA='=mlx5_0:1," in commands(finding)


def test_title_says_slow_and_the_count_leaves_it_out() -> None:
    finding = only("ENV073", changed(h100(), network_ports__7__rate_gbit_per_s=100.0))
    assert finding.title == "InfiniBand mlx5_7/1 is slow"
    assert "7 of 8 ports active at 400 Gbit/s" in finding.evidence


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
        # shared memory is no gpu memory
        changed(mac(), memory__total_bytes=32 * GIB),
    ],
    "ENV066": [
        # only the folder of the job counts
        changed(workstation(), disks__1__rotational=True),
    ],
    "ENV071": [
        # silent with nvlink one gpu or without iommu
        changed(h100(), kernel__iommu=True),
        changed(workstation(), kernel__iommu=True),
        changed(workstation(), **{**PAIR, "kernel__iommu": False}),
    ],
    "ENV073": [
        # silent where none is in use
        changed(h100(), network_ports__all__state="down"),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
