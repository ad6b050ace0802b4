"""How GPUs and processor are set up, and who uses them."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, each, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuProcess
from machines import broken_shared
from machines.healthy import (
    GIB,
    a100,
    changed,
    container,
    gpu,
    h100,
    laptop,
    rocm,
    windows,
    workstation,
    wsl,
)

OFF = {"gpus__all__persistence_mode": False}
RUN = GpuProcess(4711, "/home/user/venv/bin/python", 30 * GIB)


def test_slices_are_a_note() -> None:
    facts = {"gpus__0__mig": True, "gpus__0__mig_slices": ("1g.10gb", "2g.20gb")}
    finding = only("HW009", changed(h100(), **facts))
    assert finding.severity is Severity.NOTE
    assert "instances 1g.10gb, 2g.20gb of 80 GiB" in finding.evidence
    assert "sudo nvidia-smi -i 0 -mig 0" in commands(finding)


def test_without_slices_nothing_works() -> None:
    finding = only("HW009", changed(h100(), gpus__0__mig=True, gpus__3__mig=True))
    assert finding.severity is Severity.ERROR
    assert "0 instances" in finding.evidence
    assert "sudo nvidia-smi -i 0,3 -mig 0" in commands(finding)


def test_both_are_two_findings() -> None:
    facts = {"gpus__all__mig": True, "gpus__0__mig_slices": ("7g.80gb",)}
    assert len(findings("HW009", changed(h100(), **facts))) == 2


def test_on_a_server_it_is_a_warning() -> None:
    finding = only("HW010", changed(a100(), **OFF))
    assert finding.severity is Severity.WARNING
    assert "8 GPUs (0-7)" in finding.title
    assert "sudo systemctl enable --now nvidia-persistenced" in commands(finding)


def test_on_a_workstation_without_screen_it_is_a_note() -> None:
    assert only("HW010", changed(workstation(), **OFF)).severity is Severity.NOTE


def test_the_service_of_ubuntu_is_completed() -> None:
    machine = changed(a100(), gpus__all__persistence_mode=False)
    line = only("HW010", machine).cure.commands[1]
    assert "ExecStartPost=+-/usr/bin/nvidia-smi -pm 1" in line and line.startswith("sudo sh -c ")
    elsewhere = {"system__distribution": "rocky", "system__distribution_like": ("rhel",)}
    assert "ExecStartPost" not in commands(only("HW010", changed(machine, **elsewhere)))


def test_a_forgotten_run() -> None:
    finding = only("HW011", changed(a100(), gpus__3__processes=(RUN,)))
    assert finding.severity is Severity.WARNING
    assert "30 GiB held" in finding.title
    assert "/home/user/venv/bin/python (process 4711, 30 GiB)" in finding.evidence
    assert "ps -o pid,user,lstart,args -p 4711" in commands(finding)
    assert "\nkill" not in commands(finding), "it may be somebody else's"


def test_the_desktop_is_left_out() -> None:
    desktop = (
        GpuProcess(1, "/usr/lib/xorg/Xorg", 2 * GIB),
        GpuProcess(2, "/usr/bin/gnome-shell", GIB),
        GpuProcess(3, "C:\\Windows\\System32\\dwm.exe", GIB),
    )
    assert findings("HW011", changed(workstation(), gpus__0__processes=desktop)) == ()


def test_small_amounts_are_left_out() -> None:
    small = (GpuProcess(7, "python", 400 * 2**20),)
    assert findings("HW011", changed(workstation(), gpus__0__processes=small)) == ()
    two_percent = (GpuProcess(7, "python", 2 * GIB),)
    assert findings("HW011", changed(a100(), gpus__0__processes=two_percent)) == ()


def test_unknown_sizes_claim_nothing() -> None:
    unknown = (GpuProcess(7, "python"), GpuProcess(8))
    assert findings("HW011", changed(windows(), gpus__0__processes=unknown)) == ()


def test_powersave_taken_literally() -> None:
    finding = only("HW014", changed(workstation(), cpu__governor="powersave"))
    assert finding.severity is Severity.WARNING
    assert "governor powersave under acpi-cpufreq" in finding.evidence
    assert commands(finding).startswith("echo performance | sudo tee /sys/devices/system/cpu/")


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp", None])
def test_drivers_with_a_mind_of_their_own(driver: str | None) -> None:
    facts = {"cpu__governor": "powersave", "cpu__scaling_driver": driver}
    assert findings("HW014", changed(workstation(), **facts)) == ()


def test_two_models() -> None:
    older = gpu(2, name="NVIDIA GeForce RTX 3060", memory_bytes=12 * GIB)
    finding = only("HW018", changed(workstation(), gpus=(gpu(0), gpu(1), older)))
    assert finding.severity is Severity.NOTE
    assert "2 x NVIDIA GeForce RTX 4090 with 24 GiB" in finding.evidence
    assert "1 x NVIDIA GeForce RTX 3060 with 12 GiB" in finding.evidence
    assert "export CUDA_VISIBLE_DEVICES=0,1" in finding.cure.commands
    assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID" in finding.cure.commands


def test_silent_for_the_graphics_of_the_processor() -> None:
    inside = gpu(1, name="NVIDIA Tegra", shared_memory=True)
    assert findings("HW018", changed(workstation(), gpus=(gpu(0), inside))) == ()


def test_a_desktop_that_takes_much() -> None:
    finding = only("HW011", changed(windows(), gpus__0__memory_used_bytes=6 * GIB))
    assert finding.severity is Severity.NOTE
    assert "the screen takes 6.0 GiB" in finding.title
    assert "6.0 GiB of 24 GiB in use" in finding.evidence


def test_without_desktop_on_linux() -> None:
    facts = {"gpus__0__display": True, "gpus__0__memory_used_bytes": 6 * GIB}
    finding = only("HW011", changed(workstation(), **facts))
    assert "systemctl isolate multi-user.target" in commands(finding)


def test_programs_that_compute_do_not_count() -> None:
    run = (GpuProcess(7, "/usr/bin/python3", 5 * GIB),)
    facts = {"gpus__0__memory_used_bytes": 6 * GIB, "gpus__0__processes": run}
    assert "held by other programs" in only("HW011", changed(windows(), **facts)).title


def test_silent_without_screen_or_where_programs_are_not_known() -> None:
    assert findings("HW011", changed(workstation(), gpus__0__memory_used_bytes=6 * GIB)) == ()
    facts = {"gpus__0__memory_used_bytes": 6 * GIB, "gpus__0__processes": None}
    assert findings("HW011", changed(windows(), **facts)) == ()


def test_a_busy_gpu_and_idle_ones() -> None:
    run = (GpuProcess(4711, "python", 30 * GIB),)
    facts = {"gpus__2__utilization": 0.98, "gpus__2__processes": run, "gpus__2__power_w": 390.0}
    _, finding = findings("HW011", changed(a100(), **facts))
    assert finding.severity is Severity.WARNING
    assert "A100-SXM4-80GB (GPU 2): load 98%, 390 W, python (4711)" in finding.evidence
    assert "export CUDA_VISIBLE_DEVICES=0,1,3,4,5,6,7" in finding.cure.commands


def test_from_a_container_programs_are_not_seen() -> None:
    finding = only("HW011", changed(container(), gpus__0__utilization=0.9))
    assert "cannot be seen from here" in finding.evidence
    assert finding.cure.commands == ("nvidia-smi",)


def test_amd() -> None:
    finding = only("HW011", changed(rocm(), gpus__0__utilization=0.9))
    assert finding.cure.commands[-1] == "export HIP_VISIBLE_DEVICES=1,2,3,4,5,6,7"


def test_an_idle_card_with_a_screen_looks_busy() -> None:
    desktop = {"gpus__0__display": True, "gpus__0__utilization": 0.45}
    assert findings("HW011", changed(workstation(), **desktop)) == ()
    game = {"gpus__0__display": True, "gpus__0__utilization": 0.95}
    assert only("HW011", changed(workstation(), **game))


SILENT: dict[str, list[Any]] = {
    "HW009": [
        # a pod does not see the slices of others
        changed(broken_shared.pod_with_slice(), gpus__0__mig_slices=()),
    ],
    "HW010": [
        # silent where it does not matter
        changed(workstation(), gpus__0__display=True, **OFF),
        changed(laptop(), gpus__0__display=False, **OFF),
        changed(wsl(), gpus__0__display=False, **OFF),
        changed(windows(), gpus__0__display=False, **OFF),
    ],
    "HW011": [
        # a little load is the desktop
        changed(workstation(), gpus__0__utilization=0.12),
    ],
    "HW014": [
        # schedutil is fine
        changed(workstation(), cpu__governor="schedutil"),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
