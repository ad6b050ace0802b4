from __future__ import annotations

from diagnosing.machine.asking import findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from flatout.nouns.machine import CudaToolkit
from machines.healthy import changed, cpu_server, workstation
from machines.software import toolkit

CHECK = "toolkit-differs-from-torch"


def test_another_major_is_a_warning() -> None:
    finding = only(CHECK, broken("toolkit-of-another-major"))
    assert finding.severity is Severity.WARNING
    assert "11.8" in finding.evidence
    assert "12.8" in finding.evidence


def test_another_minor_is_a_note() -> None:
    assert only(CHECK, broken("toolkit-of-another-minor")).severity is Severity.NOTE


def test_an_update_of_the_same_minor_fits() -> None:
    same = CudaToolkit("/usr/local/cuda-12.8", "12.8.1", on_path=0)
    assert not findings(CHECK, changed(workstation(), toolkits=(same,)))


def test_the_default_folder_counts_and_another_that_nothing_names_does_not() -> None:
    default = CudaToolkit("/usr/local/cuda", "11.8")
    assert findings(CHECK, changed(workstation(), toolkits=(default,)))
    assert not findings(CHECK, changed(workstation(), toolkits=(toolkit("11.8"),)))


def test_nothing_for_a_torch_without_cuda() -> None:
    toolkits = (toolkit("11.8", on_path=0),)
    assert not findings(CHECK, changed(cpu_server(), toolkits=toolkits))
