from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import changed, interpreter, workstation

CHECK = "python-unsupported"


def without_torch(version: str, **facts: object) -> object:
    return changed(workstation(), interpreter=interpreter(None, version=version, **facts))


def test_too_new_is_an_error() -> None:
    finding = only(CHECK, broken("python-too-new"))
    assert finding.severity is Severity.ERROR
    assert "-m venv .venv" in commands(finding)


def test_too_old_for_the_newest_still_has_an_old_release() -> None:
    finding = only(CHECK, without_torch("3.8.10"))
    assert finding.severity is Severity.WARNING
    assert "the last one for it is 2.4.1" in finding.evidence


def test_a_torch_that_works_is_a_note() -> None:
    finding = only(CHECK, broken("python-left-behind"))
    assert finding.severity is Severity.NOTE
    assert "the last one for it is 2.8.0" in finding.evidence


def test_a_torch_built_by_hand_for_a_new_python_works() -> None:
    assert not findings(CHECK, changed(workstation(), interpreter__version="3.16.0"))


def test_conda_and_windows_have_their_own_way() -> None:
    conda = without_torch("3.16.0", conda=True)
    assert "conda create --name torch python=3.1" in commands(only(CHECK, conda))


def test_supported_and_unknown_ones() -> None:
    assert not findings(CHECK, workstation())
    assert not findings(CHECK, without_torch("3.12.3"))
    unknown = changed(workstation(), interpreter=interpreter(None, version=None))
    assert not findings(CHECK, unknown)
