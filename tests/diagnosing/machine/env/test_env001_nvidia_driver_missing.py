from __future__ import annotations

from flatout.diagnosing.machine.env import env001_nvidia_driver_missing as checked
from flatout.nouns.finding import Severity
from machines import broken_driver
from machines.healthy import changed, cpu_server, driver, workstation


def test_no_module_for_any_kernel() -> None:
    (found,) = checked.check(broken_driver.no_driver())
    assert checked.CHECK.severity is Severity.ERROR
    assert "NVIDIA GPU 10de:2684" in found.title
    assert "0000:21:00.0" in found.evidence
    assert "nvidia.ko on disk: 0" in found.evidence
    assert any("apt-get install" in line and "nvidia" in line for line in found.cure.commands)


def test_windows_with_its_basic_driver() -> None:
    (found,) = checked.check(broken_driver.windows_no_driver())
    assert found.evidence.startswith("display adapter: NVIDIA GeForce RTX 4090")
    assert any("nvidia.com" in line for line in found.cure.commands)


def test_silent_where_the_driver_is_not_missing() -> None:
    silent = [
        workstation(),
        cpu_server(),
        broken_driver.kernel_updated(),
        broken_driver.secure_boot(),
        changed(broken_driver.no_driver(), container__kind="docker"),
        changed(broken_driver.no_driver(), container__wsl=2),
        changed(broken_driver.no_driver(), kernel__modules=("nvidia",)),
        changed(broken_driver.no_driver(), kernel__nvidia_module_for=None),
        changed(broken_driver.no_driver(), gpus__0__kernel_driver="vfio-pci"),
        changed(broken_driver.windows_no_driver(), drivers=(driver("581.80"),)),
        changed(broken_driver.windows_no_driver(), drivers=None),
        changed(broken_driver.windows_no_driver(), gpus__0__driver_sees=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)


def test_a_jetson_has_no_address_on_the_bus() -> None:
    jetson = changed(broken_driver.no_driver(), gpus__0__pci_address=None)
    assert not list(checked.check(jetson))
