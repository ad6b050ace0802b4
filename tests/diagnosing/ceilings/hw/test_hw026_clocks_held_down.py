from __future__ import annotations

import pytest

from diagnosing.ceilings.benched import benched, codes, findings, giving, only
from machines.healthy import a100, changed

ID = "clocks-held-down"


@pytest.mark.parametrize(
    ("reason", "command"),
    [("applications_clocks_setting", "-rgc"), ("hw_power_brake_slowdown", "PERFORMANCE")],
)
def test_a_setting_or_a_brake(reason: str, command: str) -> None:
    machine = changed(a100(), gpus__2__throttles=(reason,), gpus__2__clock_sm_mhz=700)
    found = giving(benched(machine), "matmul-bf16", 0.45, ["cuda:2"])
    finding = only(ID, found, machine)
    assert finding.code == "HW026"
    assert reason in finding.evidence
    assert command in finding.cure.commands[0]
    assert "HW028" not in codes(found, machine)


def test_silent_where_it_costs_nothing_or_heat_is_the_cause() -> None:
    machine = changed(a100(), gpus__all__throttles=("applications_clocks_setting",))
    assert findings(ID, benched(machine), machine) == ()
    hot = changed(a100(), gpus__all__throttles=("hw_slowdown", "hw_thermal_slowdown"))
    assert findings(ID, giving(benched(hot), "matmul-bf16", 0.3), hot) == ()
