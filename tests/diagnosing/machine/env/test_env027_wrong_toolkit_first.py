from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, windows, workstation
from machines.software import toolkit

CHECK = "wrong-toolkit-first"


def test_the_one_that_fits_is_named() -> None:
    finding = only(CHECK, broken("wrong-toolkit-first"))
    assert "CUDA_HOME names it" in finding.evidence
    assert "export CUDA_HOME=/usr/local/cuda-12.8" in commands(finding)
    assert 'export PATH="/usr/local/cuda-12.8/bin:$PATH"' in commands(finding)


def test_on_windows_the_variable_is_cuda_path() -> None:
    toolkits = (toolkit("11.8", on_path=0), toolkit("12.8"))
    text = commands(only(CHECK, changed(windows(), toolkits=toolkits)))
    assert "CUDA_PATH" in text
    assert "$env:Path" in text


def test_nothing_where_none_fits_or_the_right_one_is_in_front() -> None:
    none_fits = (toolkit("11.8", on_path=0), toolkit("12.4"))
    assert not findings(CHECK, changed(workstation(), toolkits=none_fits))
    right = (toolkit("12.8", on_path=0), toolkit("11.8", on_path=1))
    assert not findings(CHECK, changed(workstation(), toolkits=right))


def test_the_home_variable_goes_before_the_path() -> None:
    toolkits = (toolkit("11.8", on_path=0), toolkit("12.8", cuda_home=True))
    assert not findings(CHECK, changed(workstation(), toolkits=toolkits))
