from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Severity
from machines.healthy import changed, h100, laptop, workstation

ID = "gpu-hot"


def test_close_to_the_slowdown() -> None:
    facts = {"gpus__0__temperature_c": 87, "gpus__0__power_w": 440.0}
    finding = only(ID, changed(workstation(), **facts))
    assert (finding.code, finding.severity) == ("HW019", Severity.WARNING)
    assert "87 C, slowdown at 90 C, 440 W, load 0%" in finding.evidence
    assert "sudo nvidia-smi -i 0 -pl 382" in commands(finding)


def test_a_laptop_refuses_another_power_limit() -> None:
    assert only(ID, changed(laptop(), gpus__0__temperature_c=88)).cure.commands == ()


def test_silent_where_it_throttles_already_or_is_cool() -> None:
    facts = {"gpus__0__temperature_c": 91, "gpus__0__throttles": ("hw_thermal_slowdown",)}
    assert findings(ID, changed(workstation(), **facts)) == ()
    assert findings(ID, changed(workstation(), gpus__0__temperature_c=84)) == ()


def test_a_gpu_that_throttles_hides_this_note_of_another() -> None:
    facts = {
        "gpus__0__throttles": ("hw_thermal_slowdown",),
        "gpus__1__temperature_c": 86,
    }
    assert [item.code for item in diagnose(changed(h100(), **facts))] == ["HW004"]
