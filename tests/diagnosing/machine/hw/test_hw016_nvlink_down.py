from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, h100, workstation

ID = "nvlink-down"


def test_some_of_its_connections() -> None:
    finding = only(ID, changed(h100(), gpus__4__nvlinks=16, gpus__4__nvlinks_down=2))
    assert (finding.code, finding.severity) == ("HW016", Severity.ERROR)
    assert "H100 80GB HBM3 (GPU 4): 2 down, 16 up" in finding.evidence
    assert "nvidia-smi nvlink -s -i 4" in commands(finding)


def test_all_of_its_connections_where_its_sisters_have_theirs() -> None:
    finding = only(ID, changed(a100(), gpus__0__nvlinks=0, gpus__0__nvlinks_down=12))
    assert "12 down, 0 up" in finding.evidence


def test_cards_that_lack_the_bridge_are_fine() -> None:
    facts = {"gpus__all__nvlinks": 0, "gpus__all__nvlinks_down": 4}
    assert findings(ID, changed(workstation(), **facts)) == ()
