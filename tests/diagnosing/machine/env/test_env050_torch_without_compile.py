from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken

CHECK = "torch-without-compile"
NAME = "torch-before-compile"


def test_before_2_0() -> None:
    finding = only(CHECK, broken(NAME))
    assert "installed: 1.13.1; newest: 2." in finding.evidence
    assert "torch==2." in commands(finding)


def test_from_2_0_on_or_unknown() -> None:
    for version in ("2.0.0", "2.9.1", None, "unknown"):
        assert not findings(CHECK, broken(NAME, interpreter__torch__version=version))
