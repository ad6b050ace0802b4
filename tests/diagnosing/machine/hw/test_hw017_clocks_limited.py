from __future__ import annotations

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, gpu, workstation

ID = "clocks-limited"


def test_a_setting_as_the_reason() -> None:
    facts = {"gpus__0__throttles": ("applications_clocks_setting",)}
    finding = only(ID, changed(a100(), **facts))
    assert (finding.code, finding.severity) == ("HW017", Severity.WARNING)
    assert "applications_clocks_setting, 210 MHz now, 1410 MHz at most" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 0 -rgc", "sudo nvidia-smi -i 0 -rac")


def test_behind_its_sisters() -> None:
    finding = only(ID, changed(a100(), gpus__6__clock_sm_max_mhz=1200))
    assert "GPU 6" in finding.title
    assert "its peers 1410 MHz" in finding.evidence


def test_another_model_is_no_sister() -> None:
    other = gpu(1, name="NVIDIA GeForce RTX 3090", clock_sm_max_mhz=2100)
    assert findings(ID, changed(workstation(), gpus=(gpu(0), other))) == ()
