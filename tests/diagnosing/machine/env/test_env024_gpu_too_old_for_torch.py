from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import workstation

CHECK = "gpu-too-old-for-torch"
NAME = "gtx-1080-with-new-torch"


def test_a_pascal_gets_a_build_that_still_knows_it() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.ERROR
    assert "compute capability 6.1; the oldest in this torch is 7.0" in finding.evidence
    assert "/whl/cu126" in commands(finding)


def test_beside_a_newer_gpu_it_is_hidden_from_the_job() -> None:
    finding = only(CHECK, broken("old-gpu-beside-new-one"))
    assert finding.severity is Severity.WARNING
    assert "CUDA_VISIBLE_DEVICES=0" in commands(finding)


def test_nothing_where_a_fact_is_missing_or_the_gpu_is_newer() -> None:
    assert not findings(CHECK, broken(NAME, gpus__0__compute_capability=None))
    assert not findings(CHECK, broken("rtx-5090-with-old-torch"))
    assert not findings(CHECK, workstation())


def test_a_gpu_that_is_hidden_from_programs_does_not_matter() -> None:
    assert findings(CHECK, broken(NAME, environment={"CUDA_VISIBLE_DEVICES": "0"}))
    assert not findings(CHECK, broken(NAME, environment={"CUDA_VISIBLE_DEVICES": ""}))


def test_the_cure_ends_the_finding() -> None:
    cured = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert not findings(CHECK, broken("old-gpu-beside-new-one", environment=cured))
