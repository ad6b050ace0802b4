from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, mac, workstation

ID = "open-files-limit-low"


def test_few_are_a_warning_and_the_usual_1024_a_note() -> None:
    few = only(ID, changed(workstation(), limits__open_files=256))
    assert (few.code, few.severity) == ("ENV061", Severity.WARNING)
    assert "256" in few.evidence
    assert "1048576" in few.evidence
    assert "ulimit -n 65536" in commands(few)
    usual = only(ID, changed(workstation(), limits__open_files=1024))
    assert usual.severity is Severity.NOTE


def test_not_beyond_the_hard_limit() -> None:
    facts = {"limits__open_files": 1024, "limits__open_files_hard": 4096}
    finding = only(ID, changed(workstation(), **facts))
    assert "ulimit -n 4096" in commands(finding)


def test_silent_where_there_are_enough_or_no_limit() -> None:
    assert findings(ID, changed(workstation(), limits__open_files=4096)) == ()
    assert findings(ID, changed(workstation(), limits__open_files=-1)) == ()


def test_on_macos_the_usual_limit_is_a_note_and_the_cure_is_possible() -> None:
    finding = only(ID, changed(mac(), limits__open_files=256))
    assert finding.severity is Severity.NOTE
    assert finding.cure.commands[0] == "ulimit -n 10240"


def test_a_high_hard_limit_stays() -> None:
    assert "* soft nofile 65536" in commands(
        only(ID, changed(workstation(), limits__open_files=99))
    )
    low = changed(workstation(), limits__open_files=99, limits__open_files_hard=4096)
    assert "* - nofile 65536" in commands(only(ID, low))
