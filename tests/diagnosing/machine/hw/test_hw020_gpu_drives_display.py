from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuProcess
from machines.healthy import GIB, changed, windows, workstation

ID = "gpu-drives-display"


def test_a_desktop_that_takes_much() -> None:
    finding = only(ID, changed(windows(), gpus__0__memory_used_bytes=6 * GIB))
    assert (finding.code, finding.severity) == ("HW020", Severity.NOTE)
    assert "the screen takes 6.0 GiB" in finding.title
    assert "6.0 GiB of 24 GiB in use" in finding.evidence


def test_without_desktop_on_linux() -> None:
    facts = {"gpus__0__display": True, "gpus__0__memory_used_bytes": 6 * GIB}
    finding = only(ID, changed(workstation(), **facts))
    assert "systemctl isolate multi-user.target" in commands(finding)


def test_programs_that_compute_do_not_count() -> None:
    run = (GpuProcess(7, "/usr/bin/python3", 5 * GIB),)
    facts = {"gpus__0__memory_used_bytes": 6 * GIB, "gpus__0__processes": run}
    assert findings(ID, changed(windows(), **facts)) == ()


def test_silent_without_screen_or_where_programs_are_not_known() -> None:
    assert findings(ID, changed(workstation(), gpus__0__memory_used_bytes=6 * GIB)) == ()
    facts = {"gpus__0__memory_used_bytes": 6 * GIB, "gpus__0__processes": None}
    assert findings(ID, changed(windows(), **facts)) == ()
