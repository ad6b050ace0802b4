from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.interpreter import Interpreter
from machines import broken_ordinary
from machines.healthy import HEALTHY, changed, workstation

ID = "interpreter-not-answering"


def test_the_link_to_the_shop() -> None:
    finding = only(ID, broken_ordinary.shop_link())
    assert (finding.code, finding.severity) == ("ENV075", Severity.ERROR)
    assert "WindowsApps" in finding.evidence and "9009" in finding.evidence
    assert "winget install Python.Python." in commands(finding)


def test_too_old_to_be_asked() -> None:
    finding = only(ID, broken_ordinary.old_python())
    assert finding.title.startswith("Python 3.8.10 does not answer")
    assert "-m venv .venv" in commands(finding)


def test_no_python_at_all() -> None:
    python = Interpreter(executable="/bin/ls", error="ended with exit code 0")
    finding = only(ID, changed(workstation(), interpreter=python))
    assert "/bin/ls: ended with exit code 0" in finding.evidence
    assert "flatout doctor --python PATH" in commands(finding)


def test_a_slow_one_is_a_note() -> None:
    python = Interpreter(
        executable="/nfs/venv/bin/python", error="no answer within 1.53 s", timed_out=True
    )
    finding = only(ID, changed(workstation(), interpreter=python))
    assert finding.severity is Severity.NOTE
    assert commands(finding) == "flatout doctor --deep"


def test_silent_where_it_answered_or_nothing_is_known() -> None:
    crashed = changed(workstation(), interpreter__error="ended with exit code 139")
    silent = [make() for make in HEALTHY.values()]
    silent += [crashed, changed(workstation(), interpreter=None)]
    assert [findings(ID, machine) for machine in silent] == [()] * len(silent)
