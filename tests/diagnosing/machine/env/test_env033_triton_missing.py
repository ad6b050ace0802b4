from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import changed, cpu_server, mac, windows

CHECK = "triton-missing"
NAME = "no-triton"


def test_the_triton_of_this_release() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.WARNING
    assert "install triton==3.5" in commands(finding)


def test_windows_is_told_after_a_failed_compilation_only() -> None:
    assert not findings(CHECK, windows())
    tried = changed(
        windows(),
        interpreter__torch__compile_works=False,
        interpreter__torch__compile_error="TritonMissing: Cannot find a working triton",
    )
    finding = only(CHECK, tried)
    assert finding.severity is Severity.NOTE
    assert "triton-windows==3.5.*" in commands(finding)


def test_nothing_for_cpu_mac_old_torch_and_other_processors() -> None:
    assert not findings(CHECK, cpu_server())
    assert not findings(CHECK, mac())
    assert not findings(CHECK, broken(NAME, interpreter__torch__version="1.13.1"))
    assert not findings(CHECK, broken(NAME, system__architecture="aarch64"))
