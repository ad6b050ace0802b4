from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import GIB, changed, mac, windows, workstation

ID = "disk-nearly-full"


def test_one_finding_for_one_file_system() -> None:
    finding = only(ID, changed(workstation(), disks__all__free_bytes=5 * GIB))
    assert (finding.code, finding.severity) == ("ENV066", Severity.WARNING)
    assert "5.0 GiB" in finding.title
    assert "/home/user/job, /tmp, /home/user/.cache (ext4): 5.0 GiB free" in finding.evidence
    assert "pip cache purge" in commands(finding)
    assert "TMPDIR" in commands(finding)


def test_almost_nothing_is_an_error() -> None:
    finding = only(ID, changed(workstation(), disks__0__free_bytes=GIB // 2))
    assert finding.severity is Severity.ERROR
    assert "du -xh --max-depth=1 /home/user/job" in commands(finding)
    assert "pip cache" not in commands(finding)


def test_two_file_systems_are_two_findings() -> None:
    machine = changed(workstation(), disks__0__free_bytes=5 * GIB, disks__1__free_bytes=6 * GIB)
    assert len(findings(ID, machine)) == 2


def test_each_system_has_its_own_commands() -> None:
    full = {"disks__all__free_bytes": 5 * GIB}
    assert "Get-ChildItem" in commands(only(ID, changed(windows(), **full)))
    assert "du -xh -d 1" in commands(only(ID, changed(mac(), **full)))


def test_silent_for_a_small_disk_with_space() -> None:
    small = {"disks__all__total_bytes": 60 * GIB, "disks__all__free_bytes": 5 * GIB}
    assert findings(ID, changed(workstation(), **small)) == ()


def test_a_path_with_a_space_is_quoted() -> None:
    machine = changed(workstation(), disks__0__free_bytes=1, disks__0__path="/mnt/my data")
    assert "'/mnt/my data'" in commands(only(ID, machine))
