from __future__ import annotations

from diagnosing.machine.asking import findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import rocm, workstation

CHECK = "rocm-release-mismatch"
NAME = "old-rocm-driver"


def test_another_major_and_a_torch_that_sees_no_gpu() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.WARNING
    assert "torch: ROCm 6.4; system: ROCm 5.7.1; torch sees no GPU" in finding.evidence


def test_a_torch_that_works_all_the_same_is_a_note() -> None:
    finding = only(CHECK, broken(NAME, interpreter__torch__cuda_available=True))
    assert finding.severity is Severity.NOTE
    assert "torch sees a GPU" in finding.evidence


def test_of_a_torch_that_was_not_asked_nothing_is_said_of_the_gpu() -> None:
    finding = only(CHECK, broken(NAME, interpreter__torch__cuda_available=None))
    assert "sees" not in finding.evidence


def test_another_minor_and_what_is_not_known() -> None:
    assert not findings(CHECK, broken(NAME, drivers__0__rocm="6.2.0"))
    assert not findings(CHECK, broken(NAME, drivers__0__rocm=None))
    assert not findings(CHECK, rocm())
    assert not findings(CHECK, workstation())
