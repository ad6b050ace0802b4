"""The driver of NVIDIA: missing, of another kernel, or at odds with something."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, each, each_of, findings, only, told
from flatout.knowledge.compat import cuda
from flatout.nouns.finding import Severity
from machines import broken_driver, broken_ordinary, broken_shared
from machines.breaking import bus_only
from machines.healthy import (
    a100,
    changed,
    container,
    driver,
    h100,
    torch,
    windows,
    workstation,
    wsl,
)

UNSUPPORTED = "Error 803: system has unsupported display driver / cuda driver combination"


def test_loaded_while_no_driver_is_bound() -> None:
    machine = changed(broken_driver.nouveau(), gpus__0__kernel_driver=None)
    assert len(findings("ENV002", machine)) == 1
    assert not findings("ENV002", changed(machine, kernel__modules=("nouveau", "nvidia")))
    assert not findings("ENV002", changed(machine, kernel__modules=None))


def test_after_a_kernel_update() -> None:
    found = only("ENV003", broken_driver.kernel_updated())
    assert "6.8.0-48-generic" in found.title
    assert "6.8.0-45-generic, 6.8.0-47-generic" in found.evidence
    assert "kernel headers: missing; dkms: there" in found.evidence
    lines = found.cure.commands
    headers = next(i for i, line in enumerate(lines) if "linux-headers" in line)
    build = next(i for i, line in enumerate(lines) if "dkms autoinstall" in line)
    load = next(i for i, line in enumerate(lines) if "modprobe nvidia" in line)
    assert headers < build < load


def test_headers_that_are_there_are_not_installed() -> None:
    found = only("ENV003", changed(broken_driver.kernel_updated(), kernel__headers=True))
    run = [line for line in found.cure.commands if not line.startswith("#")]
    assert not any("linux-headers" in line for line in run)


def test_versions_alone_where_nvml_fails_otherwise() -> None:
    broken = changed(
        broken_driver.driver_updated(),
        drivers__0__nvml_error="Unknown Error",
        drivers__0__smi_error=None,
        interpreter__torch__cuda_error=None,
    )
    assert len(findings("ENV004", broken)) == 1
    assert not findings("ENV004", changed(broken, drivers__0__nvml_error=None))
    assert not findings("ENV004", changed(broken, drivers__0__library_version=None))


def test_names_the_driver_and_both_ways() -> None:
    found = only("ENV005", broken_driver.old_driver())
    needed = cuda.minimum_driver("12.8", "Linux")
    assert needed is not None
    assert "470.256.02" in found.title
    assert needed in found.title
    lines = found.cure.commands
    either = next(i for i, line in enumerate(lines) if line.startswith("# Either"))
    other = next(i for i, line in enumerate(lines) if line.startswith("# Or"))
    assert either < other
    assert any("nvidia-driver" in line for line in lines[either:other])
    assert any("cu118" in line and not line.startswith("#") for line in lines[other:])


def test_in_wsl_the_driver_is_that_of_windows() -> None:
    found = only("ENV005", broken_driver.wsl_old_driver())
    needed = cuda.minimum_driver("12.8", "Windows")
    assert needed is not None
    assert f"Windows drivers from {needed}" in found.evidence


def test_a_gpu_that_newer_drivers_do_not_support_keeps_its_driver() -> None:
    kepler = changed(
        broken_driver.old_driver(),
        gpus__0__name="Tesla K80",
        gpus__0__compute_capability=(3, 7),
    )
    found = only("ENV005", kepler)
    assert not any("nvidia-driver" in line for line in found.cure.commands)
    assert found.cure.commands


def test_a_container_that_lost_its_devices() -> None:
    found = only("ENV019", broken_driver.devices_taken_away())
    assert "Unknown Error" in found.evidence
    assert "Restart the container" in found.cure.text
    assert all(line.startswith("#") for line in found.cure.commands)


TOLD = [
    told("no module for any kernel", "ENV001",
         broken_driver.no_driver(), "NVIDIA GPU 10de:2684", "0000:21:00.0", "nvidia.ko on disk: 0",
         "apt-get install", "nvidia", severity=Severity.ERROR),
    told("windows with its basic driver", "ENV001",
         broken_driver.windows_no_driver(), "display adapter: NVIDIA GeForce RTX 4090",
         "nvidia.com"),
    told("bound to nouveau", "ENV002",
         broken_driver.nouveau(), "at 0000:21:00.0", "nvidia.ko for this kernel: no",
         "blacklist nouveau", "sudo tee /etc/modprobe.d/no-nouveau.conf", "dracut", "akmod-nvidia"),
    told("a driver that is there is not installed again", "ENV002",
         changed(broken_driver.nouveau(), kernel__nvidia_module_on_disk=True), "sudo reboot",
         never=("install",)),
    told("nixos is changed in its configuration", "ENV002",
         broken_ordinary.nixos(), "sudo nixos-rebuild boot", never=("/etc/modprobe.d",)),
    told("without dkms the driver is installed with it", "ENV003",
         changed(broken_driver.kernel_updated(), kernel__dkms=False), "dkms", "install",
         never=("autoinstall",)),
    told("after an update without restart", "ENV004",
         broken_driver.driver_updated(), "570.195.03", "580.95.05", "module on disk 580.95.05",
         "mismatch", "rmmod"),
    told("on disk they differ too so a restart does not help", "ENV004",
         changed(broken_driver.driver_updated(), drivers__0__installed_version="570.195.03"),
         "restart does not help", "install"),
    told("cuda itself says so", "ENV004",
         changed(container(), interpreter__torch__cuda_error=UNSUPPORTED),
         "NVIDIA's module and library differ", "803", "# On the host:"),
    told("the key was never enrolled", "ENV008",
         broken_driver.secure_boot(), "Secure Boot: on", "580.95.05",
         "sudo update-secureboot-policy --enroll-key", "sudo reboot"),
    told("error 802", "ENV016",
         broken_driver.no_fabric(), "8 GPU(s) in_progress", "does not run", "802",
         "nvidia-fabricmanager-580", "systemctl", severity=Severity.ERROR),
    told("devices without libraries in a container", "ENV019",
         changed(broken_driver.devices_taken_away(),
         drivers__0__nvml_error="NVML Shared Library Not Found"), "NVIDIA_DRIVER_CAPABILITIES"),
    told("a gpu too old for the driver", "ENV019",
         broken_driver.pascal_on_new_driver(), "branch 580", "nvidia-driver-580",
         never=("580-open",)),
    told("open modules need turing", "ENV019",
         changed(broken_driver.pascal_on_new_driver(), drivers__0__kernel_version="580.95.05",
         drivers__0__open_kernel_module=True), "proprietary"),
    told("lost", "ENV019",
         broken_driver.gpu_is_lost(), "fallen off the bus", "Xid 79", "sudo reboot"),
    told("not loaded without secure boot", "ENV019",
         broken_driver.not_loaded(), "module is not loaded", "sudo modprobe nvidia && nvidia-smi"),
    told("libraries are missing", "ENV019",
         changed(broken_driver.gpu_is_lost(), kernel__xids=(),
         drivers__0__nvml_error="NVML Shared Library Not Found",
         drivers__0__smi_error="nvidia-smi not found"), "--reinstall"),
    told("any other error of the driver", "ENV019",
         changed(broken_driver.gpu_is_lost(), kernel__xids=None,
         drivers__0__nvml_error="Interrupt Request Issue",
         drivers__0__smi_error="No devices were found"), "Interrupt Request Issue", "dmesg"),
    told("windows with a driver that lists nothing", "ENV019",
         changed(windows(), gpus=(bus_only(name="NVIDIA GeForce RTX 4090", pci_address=None),)),
         never=("sudo",)),
    told("singularity without its option", "ENV019",
         broken_shared.singularity_without_nv(), "--nv", never=("docker",)),
    told("beside a gpu that works it is a note", "ENV002",
         changed(workstation(),
         gpus=(*(workstation().gpus or ()), bus_only("nouveau", pci_address="0000:41:00.0"))),
         severity=Severity.NOTE),
    told("each distribution keeps its key elsewhere", "ENV008",
         changed(broken_driver.secure_boot(), system__distribution="fedora",
         system__distribution_like=()),
         "sudo mokutil --import /etc/pki/akmods/certs/public_key.der"),
    told("each distribution keeps its key elsewhere: 2", "ENV008",
         changed(broken_driver.secure_boot(), system__distribution="debian",
         system__distribution_like=()), "sudo mokutil --import /var/lib/dkms/mok.pub"),
    told("a100 tells no state of its fabric", "ENV016",
         changed(a100(), kernel__fabric_manager=False, interpreter__torch__cuda_available=False)),
    told("a warning where torch has its gpus", "ENV016",
         changed(broken_driver.no_fabric(), interpreter__torch__cuda_available=True),
         severity=Severity.WARNING),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


SILENT: dict[str, list[Any]] = {
    "ENV001": [
        # a jetson has no address on the bus
        changed(broken_driver.no_driver(), gpus__0__pci_address=None),
        changed(broken_driver.no_driver(), container__kind="docker"),
        changed(broken_driver.no_driver(), container__wsl=2),
        changed(broken_driver.no_driver(), kernel__modules=("nvidia",)),
        changed(broken_driver.no_driver(), kernel__nvidia_module_for=None),
        changed(broken_driver.no_driver(), gpus__0__kernel_driver="vfio-pci"),
        changed(broken_driver.windows_no_driver(), drivers=(driver("581.80"),)),
        changed(broken_driver.windows_no_driver(), drivers=None),
        changed(broken_driver.windows_no_driver(), gpus__0__driver_sees=None),
    ],
    "ENV003": [
        changed(broken_driver.kernel_updated(), kernel__nvidia_module_on_disk=True),
        changed(broken_driver.kernel_updated(), kernel__nvidia_module_on_disk=None),
        changed(broken_driver.kernel_updated(), system__release=None),
        changed(broken_driver.kernel_updated(), kernel__modules=None),
        changed(broken_driver.kernel_updated(), gpus=()),
    ],
    "ENV004": [
        # a forward compatibility library is no mismatch
        changed(workstation(), drivers__0__library_version="590.44.01"),
        # wsl has no module
        changed(wsl(), drivers__0__nvml_error="version mismatch"),
    ],
    "ENV005": [
        # minor version compatibility is no problem
        changed(
            changed(workstation(), drivers=(driver("535.183.01", "12.2"),)),
            interpreter__torch__cuda_available=False,
        ),
        changed(broken_driver.old_driver(), interpreter__torch__cuda_available=True),
        changed(broken_driver.old_driver(), interpreter__torch=torch("2.9.1", "cpu")),
        changed(broken_driver.old_driver(), interpreter__torch__cuda="99.9"),
        changed(broken_driver.old_driver(), interpreter=None),
        changed(
            broken_driver.old_driver(), drivers__0__version=None, drivers__0__kernel_version=None
        ),
        changed(
            broken_driver.old_driver(),
            drivers__0__version="not a version",
            drivers__0__kernel_version=None,
        ),
        changed(broken_driver.old_driver(), drivers=None),
    ],
    "ENV008": [
        changed(workstation(), system__secure_boot=True),
        changed(broken_driver.secure_boot(), system__secure_boot=None),
        changed(broken_driver.secure_boot(), kernel__nvidia_module_on_disk=False),
        changed(broken_driver.secure_boot(), kernel__nvidia_module_on_disk=None),
        changed(broken_driver.secure_boot(), gpus__0__kernel_driver="nouveau"),
        changed(broken_driver.secure_boot(), container__kind="docker"),
    ],
    "ENV016": [
        changed(h100(), kernel__fabric_manager=False),
        changed(h100(), kernel__fabric_manager=None, gpus__all__nvlink_fabric=None),
        changed(a100(), kernel__fabric_manager=False, container__kind="docker"),
        changed(a100(), kernel__fabric_manager=False, gpus=None),
    ],
    "ENV019": [
        broken_driver.no_driver(),
        broken_driver.docker_without_gpu(),
        changed(broken_driver.gpu_is_lost(), kernel__modules=None),
        changed(broken_driver.gpu_is_lost(), drivers=None, gpus__0__driver_sees=None),
        changed(broken_driver.gpu_is_lost(), gpus__0__pci_address=None),
        changed(broken_driver.gpu_is_lost(), container__wsl=2),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
