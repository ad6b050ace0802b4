from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, workstation

ID = "thermal-throttling"


@pytest.mark.parametrize("reason", ["sw_thermal_slowdown", "hw_thermal_slowdown"])
def test_heat_as_a_reason(reason: str) -> None:
    facts = {"gpus__0__throttles": (reason,), "gpus__0__temperature_c": 91}
    finding = only(ID, changed(workstation(), **facts))
    assert (finding.code, finding.severity) == ("HW004", Severity.WARNING)
    assert f"{reason}, 91 C, slowdown at 90 C, 210 of 3105 MHz" in finding.evidence
    assert "temperature.gpu" in commands(finding)


def test_silent_for_other_reasons() -> None:
    facts = {"gpus__0__throttles": ("sw_power_cap", "gpu_idle", "hw_power_brake_slowdown")}
    assert findings(ID, changed(workstation(), **facts)) == ()


def test_unknown_temperatures_are_not_told() -> None:
    facts = {
        "gpus__0__throttles": ("sw_thermal_slowdown",),
        "gpus__0__temperature_c": None,
        "gpus__0__temperature_slowdown_c": None,
    }
    assert " C" not in only(ID, changed(workstation(), **facts)).evidence
