from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import changed, workstation

CHECK = "precision-variables"
NAME = "tf32-forbidden"


def test_tf32_forbidden_below_torch() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.WARNING
    assert "unset NVIDIA_TF32_OVERRIDE" in commands(finding)


def test_tf32_forced_is_a_note() -> None:
    machine = changed(workstation(), environment={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"})
    assert only(CHECK, machine).severity is Severity.NOTE


def test_a_gpu_without_tf32_loses_nothing() -> None:
    assert not findings(CHECK, broken(NAME, gpus__all__compute_capability=(7, 5)))
    assert not findings(CHECK, broken(NAME, gpus__all__compute_capability=None))


def test_other_values() -> None:
    assert not findings(CHECK, broken(NAME, environment={"NVIDIA_TF32_OVERRIDE": "1"}))
    assert not findings(CHECK, workstation())
