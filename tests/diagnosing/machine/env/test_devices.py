"""Devices that this process cannot open, see or use, and the drivers of AMD and Intel."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, each, each_of, findings, only, told
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from flatout.nouns.machine import Container, DeviceFile
from machines import broken_driver, broken_ordinary, broken_shared
from machines.breaking import bus_only, missing, visible
from machines.healthy import (
    a100,
    changed,
    container,
    cpu_server,
    h100,
    laptop,
    rocm,
    windows,
    workstation,
)


def test_a_note_where_nobody_has_asked_cuda() -> None:
    listed = changed(
        workstation(),
        kernel__device_files=missing("nvidia-uvm"),
        interpreter__torch__cuda_available=None,
    )
    assert [found.severity for found in findings("ENV007", listed)] == [Severity.NOTE]
    # Without the module nvidia_uvm the file need not be there before CUDA's first start.
    unlisted = changed(broken_driver.no_uvm(), interpreter__torch__cuda_available=None)
    assert not findings("ENV007", unlisted)


def test_a_container_may_have_been_given_the_second_gpu_alone() -> None:
    files = missing("nvidia0", count=2)
    given = changed(
        container(), kernel__device_files=files, interpreter__torch__cuda_available=False
    )
    assert not findings("ENV007", given)
    without = changed(given, kernel__device_files=missing("nvidia-uvm", count=2))
    found = only("ENV007", without)
    assert all(line.startswith("#") for line in found.cure.commands)


@pytest.mark.parametrize("value", ["", " ", "-1", "-1,0", "NoDevFiles", "none", '""'])
def test_values_that_hide_all(value: str) -> None:
    found = only("ENV009", visible(workstation(), value))
    assert "hides the GPU" in found.title
    assert "NVIDIA GPUs here: 1" in found.evidence
    assert "unset CUDA_VISIBLE_DEVICES" in found.cure.commands


def test_powershell_on_windows() -> None:
    found = only("ENV009", visible(windows(), "-1"))
    assert not any(line.startswith("unset") for line in found.cure.commands)


@pytest.mark.parametrize(
    "value", ["8", "cuda:0", "all", "0,0", "0,00", "GPU-ffff", "MIG-1234", "MIG-GPU-ffff/1/0"]
)
def test_no_gpu_is_left(value: str) -> None:
    found = only("ENV009", visible(h100(), value))
    assert found.severity is Severity.ERROR
    assert "CUDA sees no GPU" in found.title


@pytest.mark.parametrize("value", ["0", "7,6", " 1 , 2 ", "3gpu", "GPU-00000003", "gpu-00000003"])
def test_valid_values(value: str) -> None:
    assert not findings("ENV009", visible(h100(), value))


def test_too_old_for_the_driver() -> None:
    old = bus_only(pci_id="10de:1b80", pci_address="0000:41:00.0")
    whole = workstation()
    both = changed(whole, gpus=(*(whole.gpus or ()), old), drivers__0__kernel_version="590.44.01")
    found = only("ENV017", both)
    assert "580" in found.cure.text


def test_graphics_in_the_processor_beside_a_gpu_of_nvidia_are_left_alone() -> None:
    machine = broken_ordinary.linux_with_graphics_in_the_processor()
    assert not findings("ENV053", machine)
    alone = changed(machine, gpus=(broken_ordinary.RADEON,))
    wanted = changed(alone, interpreter__torch__build="rocm6.4", interpreter__torch__cuda=None)
    assert not findings("ENV053", alone)
    assert findings("ENV053", wanted)


TOLD = [
    told("the group of the files", "ENV006",
         broken_driver.files_of_video(), "/dev/nvidia0, mode 0660, group video",
         "this user is in: users", 'sudo usermod -aG video "$(id -un)"'),
    told("files of root alone", "ENV006",
         changed(broken_driver.files_of_video(), kernel__device_files__all__group="root",
         kernel__device_files__all__mode="0600"), "NVreg_DeviceFileMode=0666", never=("usermod",)),
    told("readable is not enough", "ENV006",
         changed(workstation(), kernel__device_files__1__writable=False),
         "no permission on /dev/nvidiactl", "readable: yes, writable: no"),
    told("a job that was given no gpu is told so and no file is changed", "ENV006",
         broken_shared.job_without_gpu(), "this job was given none of the 8 NVIDIA GPUs here",
         "--gres=gpu:1", never=("chmod",)),
    told("cuda fails without uvm", "ENV007",
         broken_driver.no_uvm(), "/dev/nvidia-uvm", "nvidia_uvm is not loaded",
         "sudo modprobe nvidia_uvm", "sudo nvidia-modprobe -u -c=0", severity=Severity.ERROR),
    told("says how many", "ENV009", visible(h100(), ""), "all 8 GPUs"),
    told("what stands after an invalid entry is lost", "ENV009",
         visible(h100(), "0,9,1"), '"9": the last GPU is 7', "seen by CUDA: 0", "nvidia-smi -L",
         "export CUDA_VISIBLE_DEVICES=0,1", severity=Severity.WARNING),
    told("minus one behind a gpu hides what follows", "ENV009",
         visible(workstation(), "0,-1"), "seen by CUDA: 0"),
    told("the start of a uuid must mean one gpu", "ENV009",
         visible(h100(), "GPU-0000000"), "several UUIDs begin like it"),
    told("one of eight is gone", "ENV017",
         broken_driver.fallen_off(), "the driver lists 7 of 8 NVIDIA GPUs", "0000:28:00.0",
         "Xid 79", "lspci -s 0000:28:00.0 -vv"),
    told("errors of other gpus are not its own", "ENV017",
         changed(broken_driver.fallen_off(), kernel__xids__0__pci_address="0000:21:00"),
         never=("Xid 79",)),
    told("prohibited", "ENV018",
         broken_driver.prohibited(), "prohibited on 1 of 1", "sudo nvidia-smi -i 0 -c DEFAULT"),
    told("only the closed ones are opened", "ENV018",
         changed(h100(), gpus__2__compute_mode="prohibited", gpus__5__compute_mode="prohibited"),
         "2 of 8", "sudo nvidia-smi -i 2,5 -c DEFAULT"),
    told("exclusive and taken", "ENV018", broken_driver.exclusive(), "python3 (4711)"),
    told("the group that owns the files", "ENV053",
         broken("amd-device-closed"), "/dev/kfd (0660, group render)",
         'sudo usermod -aG render "$USER"'),
    told("files of root alone mean the usual groups", "ENV053",
         broken("amd-device-closed", kernel__device_files__all__group="root"),
         "usermod -aG render,video"),
    told("a container is started anew", "ENV053",
         broken("amd-device-closed", container=Container(kind="docker")), "--device /dev/kfd"),
    told("the module is loaded or installed", "ENV053",
         broken("amdgpu-not-loaded"), "0000:05:00.0 has no kernel driver", "sudo modprobe amdgpu"),
    told("the control file is always needed", "ENV007",
         changed(workstation(), kernel__device_files=missing("nvidiactl"),
         interpreter__torch__cuda_available=None), severity=Severity.ERROR),
    told("mig devices are not judged where some exist", "ENV009",
         visible(a100(), "MIG-6f2b5f3a-0000-5555-8888-123456789abc")),
    told("mig devices are not judged where some exist: 2", "ENV009",
         visible(changed(a100(), gpus__0__mig=True), "MIG-6f2b5f3a-0000-5555-8888-123456789abc")),
    told("reserved for a virtual machine", "ENV017",
         broken_driver.passed_through(), "vfio-pci", "driver_override", severity=Severity.NOTE),
    told("reserved for a virtual machine: 2", "ENV017",
         changed(broken_driver.passed_through(),
         gpus=broken_driver.passed_through().gpus_of("nvidia")[1:]), severity=Severity.ERROR),
    told("gpus of other jobs are not lost", "ENV017",
         changed(broken_shared.job_with_one_gpu(),
         kernel__device_files=broken_shared.withheld(2, 3, 4, 5, 6, 7))),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


SILENT: dict[str, list[Any]] = {
    "ENV006": [
        # silent on the gpus of other jobs and on devices lost in docker
        changed(broken_shared.job_without_gpu(), container__kind="docker"),
        changed(
            workstation(),
            kernel__device_files=(
                DeviceFile("/dev/nvidia-caps/nvidia-cap1", True, False, False, "root", "0400"),
            ),
        ),
        changed(workstation(), kernel__device_files__all__writable=None),
        changed(broken_driver.files_of_video(), kernel__device_files__all__exists=False),
    ],
    "ENV007": [
        # silent where torch has its gpu
        changed(broken_driver.no_uvm(), interpreter__torch__cuda_available=True),
        broken_driver.docker_without_gpu(),
        changed(broken_driver.no_uvm(), kernel__modules=None),
        changed(broken_driver.no_uvm(), kernel__device_files=None),
        changed(broken_driver.no_uvm(), gpus=None),
    ],
    "ENV009": [
        # mig devices are not judged where some exist
        visible(
            changed(a100(), gpus__0__mig=True, gpus__0__mig_slices=("1g.10gb",)),
            "MIG-6f2b5f3a-0000-5555-8888-123456789abc",
        ),
        visible(workstation(), "0"),
        visible(cpu_server(), ""),
        visible(changed(workstation(), gpus=None), "3"),
        visible(changed(workstation(), gpus__0__driver_sees=None), "3"),
        visible(changed(workstation(), gpus__0__uuid=None), "GPU-ffff"),
        visible(changed(workstation(), gpus__0__mig=None), "MIG-ffff"),
    ],
    "ENV017": [
        broken_driver.docker_without_gpu(),
        changed(broken_driver.fallen_off(), container__kind="docker"),
        changed(broken_driver.fallen_off(), gpus__7__driver_sees=None),
        changed(broken_driver.fallen_off(), gpus__7__kernel_driver="nouveau"),
    ],
    "ENV018": [
        changed(broken_driver.exclusive(), gpus__0__processes=()),
        changed(broken_driver.exclusive(), gpus__0__processes=None),
        changed(broken_driver.prohibited(), gpus__0__compute_mode=None),
    ],
    "ENV053": [
        # nothing where they are open unknown or of another vendor
        broken(
            "amd-device-closed",
            kernel__device_files__all__readable=None,
            kernel__device_files__all__writable=None,
        ),
        changed(laptop(), kernel__device_files=broken("amd-device-closed").kernel.device_files),
        # nothing where it is loaded or not known
        changed(rocm(), gpus__all__kernel_driver=None),
        broken("amdgpu-not-loaded", kernel__modules=None),
        # not inside a container nor for an integrated gpu
        broken("amdgpu-not-loaded", container=Container(kind="docker")),
        broken("amdgpu-not-loaded", container=Container(wsl=2)),
        broken("amdgpu-not-loaded", gpus__0__shared_memory=True),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
