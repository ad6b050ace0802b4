"""The driver of NVIDIA: missing, of another kernel, or at odds with something."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import each, findings, only
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


def test_no_module_for_any_kernel() -> None:
    found = only("ENV001", broken_driver.no_driver())
    assert found.severity is Severity.ERROR
    assert "NVIDIA GPU 10de:2684" in found.title
    assert "0000:21:00.0" in found.evidence
    assert "nvidia.ko on disk: 0" in found.evidence
    assert any("apt-get install" in line and "nvidia" in line for line in found.cure.commands)


def test_windows_with_its_basic_driver() -> None:
    found = only("ENV001", broken_driver.windows_no_driver())
    assert found.evidence.startswith("display adapter: NVIDIA GeForce RTX 4090")
    assert any("nvidia.com" in line for line in found.cure.commands)


def test_a_jetson_has_no_address_on_the_bus() -> None:
    jetson = changed(broken_driver.no_driver(), gpus__0__pci_address=None)
    assert not findings("ENV001", jetson)


def test_bound_to_nouveau() -> None:
    found = only("ENV002", broken_driver.nouveau())
    assert "at 0000:21:00.0" in found.evidence
    assert "nvidia.ko for this kernel: no" in found.evidence
    assert "blacklist nouveau" in found.cure.commands[0]
    assert "sudo tee /etc/modprobe.d/no-nouveau.conf" in found.cure.commands[0]
    assert any("dracut" in line for line in found.cure.commands)
    assert any("akmod-nvidia" in line for line in found.cure.commands)


def test_a_driver_that_is_there_is_not_installed_again() -> None:
    found = only("ENV002", changed(broken_driver.nouveau(), kernel__nvidia_module_on_disk=True))
    assert not any("install" in line for line in found.cure.commands)
    assert found.cure.commands[-1] == "sudo reboot"


def test_loaded_while_no_driver_is_bound() -> None:
    machine = changed(broken_driver.nouveau(), gpus__0__kernel_driver=None)
    assert len(findings("ENV002", machine)) == 1
    assert not findings("ENV002", changed(machine, kernel__modules=("nouveau", "nvidia")))
    assert not findings("ENV002", changed(machine, kernel__modules=None))


def test_beside_a_gpu_that_works_it_is_a_note() -> None:
    other = bus_only("nouveau", pci_address="0000:41:00.0")
    whole = workstation()
    found = only("ENV002", changed(whole, gpus=(*(whole.gpus or ()), other)))
    assert found.severity is Severity.NOTE


def test_nixos_is_changed_in_its_configuration() -> None:
    found = only("ENV002", broken_ordinary.nixos())
    assert not any("/etc/modprobe.d" in line for line in found.cure.commands)
    assert "sudo nixos-rebuild boot" in found.cure.commands


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


def test_without_dkms_the_driver_is_installed_with_it() -> None:
    found = only("ENV003", changed(broken_driver.kernel_updated(), kernel__dkms=False))
    assert any("dkms" in line and "install" in line for line in found.cure.commands)
    assert not any("autoinstall" in line for line in found.cure.commands)


def test_after_an_update_without_restart() -> None:
    found = only("ENV004", broken_driver.driver_updated())
    assert "570.195.03" in found.title
    assert "580.95.05" in found.title
    assert "module on disk 580.95.05" in found.evidence
    assert "mismatch" in found.evidence
    assert any("rmmod" in line for line in found.cure.commands)


def test_on_disk_they_differ_too_so_a_restart_does_not_help() -> None:
    broken = changed(broken_driver.driver_updated(), drivers__0__installed_version="570.195.03")
    found = only("ENV004", broken)
    assert "restart does not help" in found.cure.text
    assert any("install" in line for line in found.cure.commands)


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


def test_cuda_itself_says_so() -> None:
    said = "Error 803: system has unsupported display driver / cuda driver combination"
    found = only("ENV004", changed(container(), interpreter__torch__cuda_error=said))
    assert found.title == "NVIDIA's module and library differ"
    assert "803" in found.evidence
    assert found.cure.commands[0].startswith("# On the host:")


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


def test_minor_version_compatibility_is_no_problem() -> None:
    machine = changed(workstation(), drivers=(driver("535.183.01", "12.2"),))
    assert not findings("ENV005", changed(machine, interpreter__torch__cuda_available=False))


def test_a_gpu_that_newer_drivers_do_not_support_keeps_its_driver() -> None:
    kepler = changed(
        broken_driver.old_driver(),
        gpus__0__name="Tesla K80",
        gpus__0__compute_capability=(3, 7),
    )
    found = only("ENV005", kepler)
    assert not any("nvidia-driver" in line for line in found.cure.commands)
    assert found.cure.commands


def test_the_key_was_never_enrolled() -> None:
    found = only("ENV008", broken_driver.secure_boot())
    assert "Secure Boot: on" in found.evidence
    assert "580.95.05" in found.evidence
    assert "sudo update-secureboot-policy --enroll-key" in found.cure.commands
    assert found.cure.commands[-1] == "sudo reboot"


def test_each_distribution_keeps_its_key_elsewhere() -> None:
    other = {"system__distribution_like": ()}
    fedora = changed(broken_driver.secure_boot(), system__distribution="fedora", **other)
    found = only("ENV008", fedora)
    assert "sudo mokutil --import /etc/pki/akmods/certs/public_key.der" in found.cure.commands
    debian = changed(broken_driver.secure_boot(), system__distribution="debian", **other)
    found = only("ENV008", debian)
    assert "sudo mokutil --import /var/lib/dkms/mok.pub" in found.cure.commands


def test_error_802() -> None:
    found = only("ENV016", broken_driver.no_fabric())
    assert found.severity is Severity.ERROR
    assert "8 GPU(s) in_progress" in found.evidence
    assert "does not run" in found.evidence
    assert "802" in found.evidence
    assert any("nvidia-fabricmanager-580" in line for line in found.cure.commands)
    assert any("systemctl" in line for line in found.cure.commands)


def test_a100_tells_no_state_of_its_fabric() -> None:
    stopped = changed(
        a100(), kernel__fabric_manager=False, interpreter__torch__cuda_available=False
    )
    assert len(findings("ENV016", stopped)) == 1


def test_a_warning_where_torch_has_its_gpus() -> None:
    works = changed(broken_driver.no_fabric(), interpreter__torch__cuda_available=True)
    assert [found.severity for found in findings("ENV016", works)] == [Severity.WARNING]


def test_a_container_that_lost_its_devices() -> None:
    found = only("ENV019", broken_driver.devices_taken_away())
    assert "Unknown Error" in found.evidence
    assert "Restart the container" in found.cure.text
    assert all(line.startswith("#") for line in found.cure.commands)


def test_devices_without_libraries_in_a_container() -> None:
    broken = changed(
        broken_driver.devices_taken_away(), drivers__0__nvml_error="NVML Shared Library Not Found"
    )
    found = only("ENV019", broken)
    assert any("NVIDIA_DRIVER_CAPABILITIES" in line for line in found.cure.commands)


def test_a_gpu_too_old_for_the_driver() -> None:
    found = only("ENV019", broken_driver.pascal_on_new_driver())
    assert "branch 580" in found.cure.text
    assert any("nvidia-driver-580" in line for line in found.cure.commands)
    assert not any("580-open" in line for line in found.cure.commands)


def test_open_modules_need_turing() -> None:
    broken = changed(
        broken_driver.pascal_on_new_driver(),
        drivers__0__kernel_version="580.95.05",
        drivers__0__open_kernel_module=True,
    )
    found = only("ENV019", broken)
    assert "proprietary" in found.cure.text


def test_lost() -> None:
    found = only("ENV019", broken_driver.gpu_is_lost())
    assert "fallen off the bus" in found.cure.text
    assert "Xid 79" in found.evidence
    assert found.cure.commands[-1] == "sudo reboot"


def test_not_loaded_without_secure_boot() -> None:
    found = only("ENV019", broken_driver.not_loaded())
    assert "module is not loaded" in found.title
    assert found.cure.commands[0] == "sudo modprobe nvidia && nvidia-smi"


def test_libraries_are_missing() -> None:
    broken = changed(
        broken_driver.gpu_is_lost(),
        kernel__xids=(),
        drivers__0__nvml_error="NVML Shared Library Not Found",
        drivers__0__smi_error="nvidia-smi not found",
    )
    found = only("ENV019", broken)
    assert any("--reinstall" in line for line in found.cure.commands)


def test_any_other_error_of_the_driver() -> None:
    broken = changed(
        broken_driver.gpu_is_lost(),
        kernel__xids=None,
        drivers__0__nvml_error="Interrupt Request Issue",
        drivers__0__smi_error="No devices were found",
    )
    found = only("ENV019", broken)
    assert "Interrupt Request Issue" in found.evidence
    assert any("dmesg" in line for line in found.cure.commands)


def test_windows_with_a_driver_that_lists_nothing() -> None:
    card = bus_only(name="NVIDIA GeForce RTX 4090", pci_address=None)
    broken = changed(windows(), gpus=(card,))
    found = only("ENV019", broken)
    assert not any("sudo" in line for line in found.cure.commands)


def test_singularity_without_its_option() -> None:
    found = only("ENV019", broken_shared.singularity_without_nv())
    assert any("--nv" in line for line in found.cure.commands)
    assert not any("docker" in line for line in found.cure.commands)


SILENT: dict[str, list[Any]] = {
    "ENV001": [
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
