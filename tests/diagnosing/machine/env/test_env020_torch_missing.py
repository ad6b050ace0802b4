from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from flatout.nouns.interpreter import OtherPython, Package
from machines.healthy import changed, cpu_server, interpreter, mac, workstation

CHECK = "torch-missing"


def test_an_error_where_a_gpu_waits() -> None:
    finding = only(CHECK, broken("torch-missing"))
    assert finding.severity is Severity.ERROR
    assert "RTX 4090" in finding.evidence
    assert "pip install torch==" in commands(finding)


def test_a_warning_without_gpu() -> None:
    assert only(CHECK, broken("torch-missing-without-gpu")).severity is Severity.WARNING


def test_a_mac_has_a_gpu_too() -> None:
    assert only(CHECK, changed(mac(), interpreter=interpreter(None))).severity is Severity.ERROR


def test_it_names_the_python_that_has_torch() -> None:
    other = OtherPython("/opt/venv/bin/python", "3.12.3", "venv", False, "2.9.1+cu128")
    finding = only(CHECK, broken("torch-missing", pythons=(other,)))
    assert "/opt/venv/bin/python has torch 2.9.1+cu128" in finding.evidence


def test_nothing_where_the_packages_are_not_known_or_list_torch() -> None:
    assert not findings(CHECK, broken("torch-missing", interpreter__packages=None))
    listed = changed(workstation(), interpreter__torch=None)
    assert not findings(CHECK, listed)
    conda = changed(cpu_server(), interpreter=interpreter(None, packages=(Package("pytorch"),)))
    assert not findings(CHECK, conda)
