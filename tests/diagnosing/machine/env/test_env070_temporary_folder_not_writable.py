from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, workstation

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


def test_silent_for_other_folders() -> None:
    assert findings(ID, changed(workstation(), disks__0__writable=False)) == ()
