from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import mac, workstation

CHECK = "torch-under-rosetta"
NAME = "mac-under-rosetta"


def test_an_arm64_python() -> None:
    finding = only(CHECK, broken(NAME))
    assert "x86_64 under Rosetta" in finding.evidence
    assert "macos-aarch64" in commands(finding)


def test_conda_makes_its_own() -> None:
    assert "CONDA_SUBDIR=osx-arm64" in commands(only(CHECK, broken(NAME, interpreter__conda=True)))


def test_nothing_elsewhere() -> None:
    assert not findings(CHECK, mac())
    assert not findings(CHECK, workstation())
    assert not findings(CHECK, broken(NAME, system__rosetta=None))
