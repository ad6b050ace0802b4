from __future__ import annotations

from flatout.diagnosing.machine.env import env015_nvml_broken as checked
from flatout.nouns.finding import Severity
from machines import broken_driver
from machines.healthy import changed, workstation


def test_only_nvidia_smi_works() -> None:
    (found,) = checked.check(broken_driver.nvml_broken())
    assert found.severity is None
    assert checked.CHECK.severity is Severity.WARNING
    assert "NVML Shared Library Not Found" in found.evidence
    assert any("apt-get install --reinstall" in line for line in found.cure.commands)


def test_only_nvml_works() -> None:
    (found,) = checked.check(changed(workstation(), drivers__0__smi_error="nvidia-smi not found"))
    assert found.severity is Severity.NOTE
    assert "nvidia-smi does not work, NVML does" in found.title


def test_silent_where_both_or_neither_fail() -> None:
    silent = [
        workstation(),
        broken_driver.driver_updated(),
        broken_driver.no_driver(),
        changed(broken_driver.nvml_broken(), drivers__0__version=None),
        changed(broken_driver.nvml_broken(), gpus=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
