from __future__ import annotations

from flatout.diagnosing.machine.env import env014_wsl_without_dxg as checked
from flatout.nouns.finding import Severity
from machines import broken_driver
from machines.healthy import changed, torch, wsl


def test_no_device_file() -> None:
    (found,) = checked.check(broken_driver.wsl_without_dxg())
    assert "4.19.104-microsoft-standard, older than 4.19.121" in found.evidence
    assert found.severity is None
    assert "wsl.exe --update" in found.cure.commands
    assert any("Windows driver" in line for line in found.cure.commands)


def test_a_newer_kernel_is_not_blamed() -> None:
    newer = changed(
        broken_driver.wsl_without_dxg(), system__release="6.6.87.2-microsoft-standard-WSL2"
    )
    (found,) = checked.check(newer)
    assert "older" not in found.evidence


def test_a_warning_for_a_torch_without_cuda() -> None:
    cpu = changed(broken_driver.wsl_without_dxg(), interpreter__torch=torch("2.9.1", "cpu"))
    assert [found.severity for found in checked.check(cpu)] == [Severity.WARNING]


def test_silent_where_it_is_there_or_not_known() -> None:
    broken = broken_driver.wsl_without_dxg()
    silent = [
        wsl(),
        broken_driver.wsl_1(),
        changed(broken, kernel__device_files=None),
        changed(broken, container__kind="docker"),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
