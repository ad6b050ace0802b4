from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, windows, workstation

ID = "temporary-folder-not-writable"


def test_tmp_without_its_mode() -> None:
    finding = only(ID, changed(workstation(), disks__1__writable=False))
    assert (finding.code, finding.severity) == ("ENV070", Severity.ERROR)
    assert "/tmp: not writable" in finding.evidence
    assert 'export TMPDIR="$HOME/tmp"' in commands(finding)
    assert "sudo chmod 1777 /tmp" in commands(finding)


def test_a_folder_of_tmpdir() -> None:
    facts = {"disks__1__path": "/scratch/x", "environment": {"TMPDIR": "/scratch/x"}}
    finding = only(ID, changed(workstation(), disks__1__writable=False, **facts))
    assert "TMPDIR is /scratch/x" in finding.evidence
    assert "chmod" not in commands(finding)


def test_windows_has_other_variables() -> None:
    finding = only(ID, changed(windows(), disks__1__writable=False))
    assert "$env:TEMP" in commands(finding)


def test_a_long_path_keeps_the_title_short() -> None:
    facts = {"disks__1__writable": False, "disks__1__path": "/very/long" * 30}
    assert len(only(ID, changed(workstation(), **facts)).title) <= 100


def test_silent_for_other_folders() -> None:
    assert findings(ID, changed(workstation(), disks__0__writable=False)) == ()
