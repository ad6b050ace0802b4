from __future__ import annotations

from diagnosing.ceilings.benched import benched, codes, findings, giving, only
from machines.healthy import a100, changed

ID = "heat-slows-compute"


def test_heat() -> None:
    machine = changed(
        a100(),
        gpus__1__throttles=("hw_slowdown", "hw_thermal_slowdown"),
        gpus__1__temperature_c=91,
        gpus__1__clock_sm_mhz=600,
    )
    found = giving(benched(machine), "matmul-bf16", 0.35, ["cuda:1"])
    finding = only(ID, found, machine)
    assert finding.code == "HW025"
    assert "hw_thermal_slowdown, 91 C, 600 of" in finding.evidence
    assert "-i 1" in finding.cure.commands[0]
    assert not {"HW026", "HW028"} & set(codes(found, machine))


def test_silent_where_it_costs_nothing() -> None:
    machine = changed(a100(), gpus__all__throttles=("sw_thermal_slowdown",))
    assert findings(ID, benched(machine), machine) == ()
    assert findings(ID, giving(benched(a100()), "matmul-bf16", 0.35), a100()) == ()
