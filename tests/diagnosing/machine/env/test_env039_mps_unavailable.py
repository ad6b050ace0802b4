from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, workstation

CHECK = "mps-unavailable"
NAME = "mac-with-old-macos"


def test_an_old_macos() -> None:
    finding = only(CHECK, broken(NAME))
    assert "MPS is built in and not available; macOS 13.7.4" in finding.evidence
    assert "softwareupdate" in commands(finding)


def test_a_torch_without_mps_is_replaced() -> None:
    finding = only(CHECK, broken(NAME, interpreter__torch__mps_built=False))
    assert "torch==" in commands(finding)


def test_nothing_without_an_apple_gpu_or_an_answer() -> None:
    assert not findings(CHECK, changed(workstation(), interpreter__torch__mps_built=False))
    assert not findings(CHECK, broken(NAME, interpreter__torch__mps_available=None))
    assert not findings(CHECK, broken(NAME, interpreter__torch__imported=None))
