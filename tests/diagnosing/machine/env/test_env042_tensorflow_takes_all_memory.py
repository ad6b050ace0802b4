from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity

CHECK = "tensorflow-takes-all-memory"
NAME = "tensorflow-beside-torch"


def test_beside_torch_it_is_a_warning() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.WARNING
    assert "24 GiB" in finding.evidence
    assert "TF_FORCE_GPU_ALLOW_GROWTH=true" in commands(finding)
    assert "set_memory_growth" in finding.cure.text


def test_alone_it_is_a_note() -> None:
    assert only(CHECK, broken(NAME, interpreter__torch=None)).severity is Severity.NOTE


def test_nothing_once_it_grows_or_has_no_gpu() -> None:
    assert not findings(CHECK, broken(NAME, environment={"TF_FORCE_GPU_ALLOW_GROWTH": "true"}))
    assert findings(CHECK, broken(NAME, environment={"TF_FORCE_GPU_ALLOW_GROWTH": "false"}))
    assert not findings(CHECK, broken(NAME, environment=None))
    assert not findings(CHECK, broken(NAME, gpus=()))
