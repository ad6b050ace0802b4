from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuProcess
from machines.healthy import GIB, a100, changed, windows, workstation

ID = "gpu-memory-held"
RUN = GpuProcess(4711, "/home/user/venv/bin/python", 30 * GIB)


def test_a_forgotten_run() -> None:
    finding = only(ID, changed(a100(), gpus__3__processes=(RUN,)))
    assert (finding.code, finding.severity) == ("HW011", Severity.WARNING)
    assert "30 GiB held" in finding.title
    assert "/home/user/venv/bin/python (process 4711, 30 GiB)" in finding.evidence
    assert "ps -o pid,user,lstart,args -p 4711" in commands(finding)
    assert "\nkill" not in commands(finding), "it may be somebody else's"


def test_the_desktop_is_left_out() -> None:
    desktop = (
        GpuProcess(1, "/usr/lib/xorg/Xorg", 2 * GIB),
        GpuProcess(2, "/usr/bin/gnome-shell", GIB),
        GpuProcess(3, "C:\\Windows\\System32\\dwm.exe", GIB),
    )
    assert findings(ID, changed(workstation(), gpus__0__processes=desktop)) == ()


def test_small_amounts_are_left_out() -> None:
    small = (GpuProcess(7, "python", 400 * 2**20),)
    assert findings(ID, changed(workstation(), gpus__0__processes=small)) == ()
    two_percent = (GpuProcess(7, "python", 2 * GIB),)
    assert findings(ID, changed(a100(), gpus__0__processes=two_percent)) == ()


def test_unknown_sizes_claim_nothing() -> None:
    unknown = (GpuProcess(7, "python"), GpuProcess(8))
    assert findings(ID, changed(windows(), gpus__0__processes=unknown)) == ()
