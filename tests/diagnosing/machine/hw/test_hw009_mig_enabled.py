from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines import broken_shared
from machines.healthy import changed, h100

ID = "mig-enabled"


def test_slices_are_a_note() -> None:
    facts = {"gpus__0__mig": True, "gpus__0__mig_slices": ("1g.10gb", "2g.20gb")}
    finding = only(ID, changed(h100(), **facts))
    assert (finding.code, finding.severity) == ("HW009", Severity.NOTE)
    assert "instances 1g.10gb, 2g.20gb of 80 GiB" in finding.evidence
    assert "sudo nvidia-smi -i 0 -mig 0" in commands(finding)


def test_without_slices_nothing_works() -> None:
    finding = only(ID, changed(h100(), gpus__0__mig=True, gpus__3__mig=True))
    assert finding.severity is Severity.ERROR
    assert "0 instances" in finding.evidence
    assert "sudo nvidia-smi -i 0,3 -mig 0" in commands(finding)


def test_both_are_two_findings() -> None:
    facts = {"gpus__all__mig": True, "gpus__0__mig_slices": ("7g.80gb",)}
    assert len(findings(ID, changed(h100(), **facts))) == 2


def test_a_pod_does_not_see_the_slices_of_others() -> None:
    assert findings(ID, changed(broken_shared.pod_with_slice(), gpus__0__mig_slices=())) == ()
