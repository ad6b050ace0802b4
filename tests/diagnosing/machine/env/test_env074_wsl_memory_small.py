from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Severity
from machines.healthy import changed, memory, workstation, wsl

ID = "wsl-memory-small"


def test_less_than_the_gpu() -> None:
    finding = only(ID, changed(wsl(), memory=memory(16)))
    assert (finding.code, finding.severity) == ("ENV074", Severity.WARNING)
    assert "main memory of WSL 16 GiB; the GPU has 24 GiB" in finding.evidence
    assert "memory=30GB" in commands(finding)
    assert finding.cure.commands[-1] == "wsl.exe --shutdown"


def test_it_stands_for_the_general_finding() -> None:
    found = diagnose(changed(wsl(), memory=memory(6)))
    assert [item.code for item in found] == ["ENV074"]


def test_silent_outside_of_wsl_and_with_enough() -> None:
    assert findings(ID, changed(workstation(), memory=memory(8))) == ()
    assert findings(ID, changed(wsl(), memory=memory(24))) == ()
