from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import workstation

CHECK = "torch-debug-build"
NAME = "torch-debug-build"


def test_the_same_release_as_an_ordinary_wheel() -> None:
    finding = only(CHECK, broken(NAME))
    assert "site-packages" in finding.evidence
    assert "torch==2.9.1 --force-reinstall" in commands(finding)


def test_a_build_that_is_in_no_index_is_replaced_by_the_one_that_fits() -> None:
    machine = broken(NAME, interpreter__torch__build="gitabcdef")
    assert "--force-reinstall" not in commands(only(CHECK, machine))


def test_nothing_otherwise() -> None:
    assert not findings(CHECK, workstation())
    assert not findings(CHECK, broken(NAME, interpreter__torch__debug=None))
