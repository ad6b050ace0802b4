from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, h100, workstation

ID = "locked-memory-limit-low"
LOW = {"limits__locked_memory_bytes": 64 * 1024}


def test_with_active_ports() -> None:
    finding = only(ID, changed(h100(), **LOW))
    assert (finding.code, finding.severity) == ("ENV062", Severity.WARNING)
    assert "64 KiB" in finding.evidence
    assert "mlx5_0/1" in finding.evidence
    assert "memlock unlimited" in commands(finding)


def test_silent_without_active_ports() -> None:
    assert findings(ID, changed(workstation(), **LOW)) == ()
    assert findings(ID, changed(h100(), network_ports__all__state="down", **LOW)) == ()


def test_silent_without_a_limit() -> None:
    assert findings(ID, changed(h100(), limits__locked_memory_bytes=2**30)) == ()
