from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, mac, workstation

ID = "process-limit-low"


def test_low_on_linux() -> None:
    finding = only(ID, changed(workstation(), limits__processes=1024))
    assert (finding.code, finding.severity) == ("ENV068", Severity.WARNING)
    assert "1024; 32 hardware threads" in finding.evidence
    assert "limits.d/processes.conf" in commands(finding)


def test_silent_elsewhere_and_without_a_limit() -> None:
    assert findings(ID, changed(mac(), limits__processes=1000)) == ()
    assert findings(ID, changed(workstation(), limits__processes=-1)) == ()
    assert findings(ID, changed(workstation(), limits__processes=4096)) == ()
