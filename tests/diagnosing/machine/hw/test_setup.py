"""How GPUs and processor are set up, and who uses them."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, commands, each, each_of, findings, only, told
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuProcess
from machines import broken_shared
from machines.healthy import (
    GIB,
    a100,
    changed,
    container,
    h100,
    laptop,
    rocm,
    windows,
    workstation,
    wsl,
)

OFF = {"gpus__all__persistence_mode": False}
RUN = GpuProcess(4711, "/home/user/venv/bin/python", 30 * GIB)


def test_both_are_two_findings() -> None:
    facts = {"gpus__all__mig": True, "gpus__0__mig_slices": ("7g.80gb",)}
    assert len(findings("HW009", changed(h100(), **facts))) == 2


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


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp", None])
def test_drivers_with_a_mind_of_their_own(driver: str | None) -> None:
    facts = {"cpu__governor": "powersave", "cpu__scaling_driver": driver}
    assert findings("HW014", changed(workstation(), **facts)) == ()


def test_a_busy_gpu_and_idle_ones() -> None:
    run = (GpuProcess(4711, "python", 30 * GIB),)
    facts = {"gpus__2__utilization": 0.98, "gpus__2__processes": run, "gpus__2__power_w": 390.0}
    _, finding = findings("HW011", changed(a100(), **facts))
    assert finding.severity is Severity.WARNING
    assert "A100-SXM4-80GB (GPU 2): load 98%, 390 W, python (4711)" in finding.evidence
    assert "export CUDA_VISIBLE_DEVICES=0,1,3,4,5,6,7" in finding.cure.commands


TOLD = [
    told("slices are a note", "HW009",
         changed(h100(), gpus__0__mig=True, gpus__0__mig_slices=("1g.10gb", "2g.20gb")),
         "instances 1g.10gb, 2g.20gb of 80 GiB", "sudo nvidia-smi -i 0 -mig 0",
         severity=Severity.NOTE),
    told("without slices nothing works", "HW009",
         changed(h100(), gpus__0__mig=True, gpus__3__mig=True), "0 instances",
         "sudo nvidia-smi -i 0,3 -mig 0", severity=Severity.ERROR),
    told("on a server it is a warning", "HW010",
         changed(a100(), **OFF), "8 GPUs (0-7)", "sudo systemctl enable --now nvidia-persistenced",
         severity=Severity.WARNING),
    told("on a workstation without screen it is a note", "HW010",
         changed(workstation(), **OFF), severity=Severity.NOTE),
    told("powersave taken literally", "HW014",
         changed(workstation(), cpu__governor="powersave"), "governor powersave under acpi-cpufreq",
         "echo performance | sudo tee /sys/devices/system/cpu/", severity=Severity.WARNING),
    told("a desktop that takes much", "HW011",
         changed(windows(), gpus__0__memory_used_bytes=6 * GIB), "the screen takes 6.0 GiB",
         "6.0 GiB of 24 GiB in use", severity=Severity.NOTE),
    told("without desktop on linux", "HW011",
         changed(workstation(), gpus__0__display=True, gpus__0__memory_used_bytes=6 * GIB),
         "systemctl isolate multi-user.target"),
    told("programs that compute do not count", "HW011",
         changed(windows(), gpus__0__memory_used_bytes=6 * GIB,
         gpus__0__processes=(GpuProcess(7, "/usr/bin/python3", 5 * GIB),)),
         "held by other programs"),
    told("from a container programs are not seen", "HW011",
         changed(container(), gpus__0__utilization=0.9), "cannot be seen from here", "nvidia-smi"),
    told("amd", "HW011",
         changed(rocm(), gpus__0__utilization=0.9), "export HIP_VISIBLE_DEVICES=1,2,3,4,5,6,7"),
    told("an idle card with a screen looks busy", "HW011",
         changed(workstation(), gpus__0__display=True, gpus__0__utilization=0.95)),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


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
        # the desktop is left out
        changed(
            workstation(),
            gpus__0__processes=(
                GpuProcess(1, "/usr/lib/xorg/Xorg", 2 * GIB),
                GpuProcess(2, "/usr/bin/gnome-shell", GIB),
                GpuProcess(3, "C:\\Windows\\System32\\dwm.exe", GIB),
            ),
        ),
        # small amounts are left out
        changed(workstation(), gpus__0__processes=(GpuProcess(7, "python", 400 * 2**20),)),
        changed(a100(), gpus__0__processes=(GpuProcess(7, "python", 2 * GIB),)),
        # unknown sizes claim nothing
        changed(windows(), gpus__0__processes=(GpuProcess(7, "python"), GpuProcess(8))),
        # silent without screen or where programs are not known
        changed(workstation(), gpus__0__memory_used_bytes=6 * GIB),
        changed(windows(), gpus__0__memory_used_bytes=6 * GIB, gpus__0__processes=None),
        # an idle card with a screen looks busy
        changed(workstation(), gpus__0__display=True, gpus__0__utilization=0.45),
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
