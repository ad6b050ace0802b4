from __future__ import annotations

import dataclasses

from diagnosing.ceilings.benched import benched, findings, giving, only
from machines.healthy import a100, changed, workstation

ID = "gpus-unequal"


def test_one_behind_the_others() -> None:
    machine = changed(a100(), gpus__6__throttles=("sw_thermal_slowdown",))
    finding = only(ID, giving(benched(machine), "matmul-bf16", 0.7, ["cuda:6"]), machine)
    assert finding.code == "HW034"
    assert "GPU 6" in finding.title
    assert "81%" in finding.title
    assert "sw_thermal_slowdown" in finding.evidence


def test_told_once_by_the_worst_measurement() -> None:
    found = giving(benched(a100()), "matmul-bf16", 0.7, ["cuda:6"])
    found = giving(found, "copy-host-to-device-pinned", 0.2, ["cuda:6"])
    assert "24%" in only(ID, found, a100()).title


def test_silent_where_they_are_alike_or_of_different_kinds() -> None:
    assert findings(ID, benched(a100()), a100()) == ()
    assert findings(ID, giving(benched(a100()), "matmul-bf16", 0.8, ["cuda:6"]), a100()) == ()
    found = giving(benched(a100()), "matmul-bf16", 0.3, ["cuda:6"])
    other = tuple(
        dataclasses.replace(one, name="NVIDIA L4") if one.device == "cuda:6" else one
        for one in found.devices
    )
    assert findings(ID, dataclasses.replace(found, devices=other), a100()) == ()
    assert findings(ID, benched(workstation()), workstation()) == ()
