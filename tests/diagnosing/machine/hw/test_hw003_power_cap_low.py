from __future__ import annotations

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, laptop, rocm, workstation

ID = "power-cap-low"


def test_all_of_a_node() -> None:
    finding = only(ID, changed(a100(), gpus__all__power_limit_w=300.0))
    assert (finding.code, finding.severity) == ("HW003", Severity.WARNING)
    assert finding.title == "8 GPUs (0-7): power limit at 75% of the default"
    assert "limit 300 W, default 400 W" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 0,1,2,3,4,5,6,7 -pl 400",)


def test_amd() -> None:
    facts = {"gpus__all__power_limit_default_w": 750.0, "gpus__2__power_limit_w": 400.0}
    finding = only(ID, changed(rocm(), **facts))
    assert finding.cure.commands == ("sudo rocm-smi -d 2 --resetpoweroverdrive",)


def test_silent_within_five_percent() -> None:
    assert findings(ID, changed(workstation(), gpus__0__power_limit_w=430.0)) == ()
    assert findings(ID, changed(workstation(), gpus__0__power_limit_w=600.0)) == ()


def test_a_laptop_on_battery_is_a_note() -> None:
    finding = only(ID, changed(laptop(), gpus__0__power_limit_w=35.0))
    assert finding.severity is Severity.NOTE
    assert finding.cure.commands == ()
    assert "Plug" in finding.cure.text
