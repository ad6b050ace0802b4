from __future__ import annotations

from flatout.diagnosing.machine.env import env013_wsl_version_1 as checked
from flatout.nouns.finding import Severity
from machines import broken_driver
from machines.healthy import changed, torch, workstation, wsl


def test_wsl_1() -> None:
    (found,) = checked.check(broken_driver.wsl_1())
    assert found.severity is None
    assert "4.4.0-22621-Microsoft" in found.evidence
    assert "wsl --set-version $WSL_DISTRO_NAME 2" in found.cure.commands[0]


def test_a_warning_for_a_torch_without_cuda() -> None:
    cpu = changed(broken_driver.wsl_1(), interpreter__torch=torch("2.9.1", "cpu"))
    assert [found.severity for found in checked.check(cpu)] == [Severity.WARNING]


def test_silent_elsewhere() -> None:
    assert not list(checked.check(wsl()))
    assert not list(checked.check(workstation()))
