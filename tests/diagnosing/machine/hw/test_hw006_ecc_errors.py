from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed

ID = "ecc-errors"


def test_present_errors() -> None:
    facts = {"gpus__1__ecc_uncorrected": 2, "gpus__1__ecc_uncorrected_lifetime": 5}
    finding = only(ID, changed(a100(), **facts))
    assert (finding.code, finding.severity) == ("HW006", Severity.ERROR)
    assert "2 since the driver was loaded, 5 in its lifetime" in finding.evidence
    assert "sudo nvidia-smi -i 1 --gpu-reset" in commands(finding)


def test_past_errors_are_a_note() -> None:
    finding = only(ID, changed(a100(), gpus__4__ecc_uncorrected_lifetime=1))
    assert finding.severity is Severity.NOTE
    assert "in the past" in finding.title


def test_both_are_two_findings() -> None:
    facts = {"gpus__1__ecc_uncorrected": 2, "gpus__4__ecc_uncorrected_lifetime": 1}
    assert len(findings(ID, changed(a100(), **facts))) == 2
