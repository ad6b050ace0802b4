from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, h100, workstation

ID = "power-brake"


@pytest.mark.parametrize(
    "reasons", [("hw_power_brake_slowdown",), ("hw_slowdown", "hw_power_brake_slowdown")]
)
def test_the_brake(reasons: tuple[str, ...]) -> None:
    finding = only(ID, changed(h100(), gpus__2__throttles=reasons))
    assert (finding.code, finding.severity) == ("HW005", Severity.WARNING)
    assert "hw_power_brake_slowdown" in finding.evidence
    assert "sudo ipmitool sdr type 'Power Supply'" in commands(finding)


def test_a_slowdown_without_heat_is_one_of_power() -> None:
    assert only(ID, changed(workstation(), gpus__0__throttles=("hw_slowdown",)))


def test_a_slowdown_by_heat_is_not() -> None:
    reasons = ("hw_slowdown", "hw_thermal_slowdown")
    assert findings(ID, changed(workstation(), gpus__0__throttles=reasons)) == ()


def test_a_workstation_has_no_management_controller() -> None:
    finding = only(ID, changed(workstation(), gpus__0__throttles=("hw_power_brake_slowdown",)))
    assert "ipmitool" not in commands(finding)
