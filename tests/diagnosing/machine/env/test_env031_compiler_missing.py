from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import changed, windows

CHECK = "compiler-missing"
NAME = "no-compiler"


def test_the_distributions_compiler() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.WARNING
    assert "build-essential" in commands(finding)


def test_conda_can_bring_one() -> None:
    assert "gxx" in commands(only(CHECK, broken(NAME, interpreter__conda=True)))


def test_a_note_on_windows() -> None:
    finding = only(CHECK, changed(windows(), interpreter__compiler_searched=True))
    assert finding.severity is Severity.NOTE
    assert "BuildTools" in commands(finding)


def test_nothing_where_none_was_looked_for_or_torch_cannot_compile() -> None:
    assert not findings(CHECK, broken(NAME, interpreter__compiler_searched=False))
    assert not findings(CHECK, broken(NAME, interpreter__torch__version="1.13.1"))
    assert not findings(CHECK, broken(NAME, interpreter__torch=None))
