from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, workstation, wsl

ID = "disk-slow"


def test_a_turning_disk() -> None:
    finding = only(ID, changed(workstation(), disks__0__rotational=True))
    assert (finding.code, finding.severity) == ("ENV067", Severity.WARNING)
    assert "/home/user/job" in finding.evidence
    assert "hard disk" in finding.title


def test_a_network_file_system_is_a_note() -> None:
    facts = {"disks__0__network": True, "disks__0__file_system": "nfs4"}
    finding = only(ID, changed(workstation(), **facts))
    assert finding.severity is Severity.NOTE
    assert "nfs4" in finding.evidence


def test_a_windows_drive_in_wsl() -> None:
    facts = {"disks__0__path": "/mnt/c/job", "disks__0__file_system": "9p"}
    finding = only(ID, changed(wsl(), **facts))
    assert finding.severity is Severity.WARNING
    assert "cp -r /mnt/c/job" in commands(finding)
    assert findings(ID, changed(workstation(), **facts)) == (), "9p elsewhere is a virtual disk"


def test_only_the_folder_of_the_job_counts() -> None:
    assert findings(ID, changed(workstation(), disks__1__rotational=True)) == ()


def test_the_shell_ends_in_the_copy() -> None:
    slow = changed(wsl(), disks__0__path="/mnt/c/my data/job", disks__0__file_system="9p")
    line = 'cp -r \'/mnt/c/my data/job\' "$HOME/" && cd "$HOME"/job'
    assert commands(only(ID, slow)) == line
