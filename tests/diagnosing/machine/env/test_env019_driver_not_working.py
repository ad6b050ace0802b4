from __future__ import annotations

from flatout.diagnosing.machine.env import env019_driver_not_working as checked
from machines import broken_driver, broken_shared
from machines.breaking import bus_only
from machines.healthy import changed, windows, workstation


def test_a_container_that_lost_its_devices() -> None:
    (found,) = checked.check(broken_driver.devices_taken_away())
    assert "Unknown Error" in found.evidence
    assert "Restart the container" in found.cure.text
    assert all(line.startswith("#") for line in found.cure.commands)


def test_devices_without_libraries_in_a_container() -> None:
    broken = changed(
        broken_driver.devices_taken_away(), drivers__0__nvml_error="NVML Shared Library Not Found"
    )
    (found,) = checked.check(broken)
    assert any("NVIDIA_DRIVER_CAPABILITIES" in line for line in found.cure.commands)


def test_a_gpu_too_old_for_the_driver() -> None:
    (found,) = checked.check(broken_driver.pascal_on_new_driver())
    assert "branch 580" in found.cure.text
    assert any("nvidia-driver-580" in line for line in found.cure.commands)
    assert not any("580-open" in line for line in found.cure.commands)


def test_open_modules_need_turing() -> None:
    broken = changed(
        broken_driver.pascal_on_new_driver(),
        drivers__0__kernel_version="580.95.05",
        drivers__0__open_kernel_module=True,
    )
    (found,) = checked.check(broken)
    assert "proprietary" in found.cure.text


def test_lost() -> None:
    (found,) = checked.check(broken_driver.gpu_is_lost())
    assert "fallen off the bus" in found.cure.text
    assert "Xid 79" in found.evidence
    assert found.cure.commands[-1] == "sudo reboot"


def test_not_loaded_without_secure_boot() -> None:
    (found,) = checked.check(broken_driver.not_loaded())
    assert "module is not loaded" in found.title
    assert found.cure.commands[0] == "sudo modprobe nvidia && nvidia-smi"
    assert not list(checked.check(broken_driver.secure_boot()))


def test_libraries_are_missing() -> None:
    broken = changed(
        broken_driver.gpu_is_lost(),
        kernel__xids=(),
        drivers__0__nvml_error="NVML Shared Library Not Found",
        drivers__0__smi_error="nvidia-smi not found",
    )
    (found,) = checked.check(broken)
    assert any("--reinstall" in line for line in found.cure.commands)


def test_any_other_error_of_the_driver() -> None:
    broken = changed(
        broken_driver.gpu_is_lost(),
        kernel__xids=None,
        drivers__0__nvml_error="Interrupt Request Issue",
        drivers__0__smi_error="No devices were found",
    )
    (found,) = checked.check(broken)
    assert "Interrupt Request Issue" in found.evidence
    assert any("dmesg" in line for line in found.cure.commands)


def test_windows_with_a_driver_that_lists_nothing() -> None:
    card = bus_only(name="NVIDIA GeForce RTX 4090", pci_address=None)
    broken = changed(windows(), gpus=(card,))
    (found,) = checked.check(broken)
    assert not any("sudo" in line for line in found.cure.commands)


def test_silent_where_the_driver_answers_or_nothing_is_known() -> None:
    lost = broken_driver.gpu_is_lost()
    silent = [
        workstation(),
        broken_driver.no_driver(),
        broken_driver.docker_without_gpu(),
        broken_driver.fallen_off(),
        changed(lost, kernel__modules=None),
        changed(lost, drivers=None, gpus__0__driver_sees=None),
        changed(lost, gpus__0__pci_address=None),
        changed(lost, container__wsl=2),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)


def test_singularity_without_its_option() -> None:
    (found,) = checked.check(broken_shared.singularity_without_nv())
    assert any("--nv" in line for line in found.cure.commands)
    assert not any("docker" in line for line in found.cure.commands)
