from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, workstation

CHECK = "torch-compile-disabled"
NAME = "compile-switched-off"


def test_both_variables_in_one_finding() -> None:
    both = {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
    text = commands(only(CHECK, broken(NAME, environment=both)))
    assert "unset TORCH_COMPILE_DISABLE" in text
    assert "unset TORCHDYNAMO_DISABLE" in text


def test_torch_reads_1_alone_as_yes() -> None:
    for value in ("0", "", "true"):
        machine = changed(workstation(), environment={"TORCH_COMPILE_DISABLE": value})
        assert not findings(CHECK, machine)


def test_nothing_for_a_torch_that_has_no_compile() -> None:
    assert not findings(CHECK, broken(NAME, interpreter__torch__version="1.13.1"))
    assert not findings(CHECK, broken(NAME, interpreter__torch=None))
