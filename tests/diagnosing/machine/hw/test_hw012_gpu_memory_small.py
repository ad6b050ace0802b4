from __future__ import annotations

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from machines.healthy import GIB, changed, gpu, workstation

ID = "gpu-memory-small"


def test_four_gibibytes() -> None:
    finding = only(ID, changed(workstation(), gpus__0__memory_bytes=4 * GIB))
    assert (finding.code, finding.severity) == ("HW012", Severity.NOTE)
    assert "4.0 GiB" in finding.title
    assert "268 million parameters" in finding.evidence


def test_a_larger_one_beside_it_is_enough() -> None:
    two = changed(workstation(), gpus=(gpu(0), gpu(1, memory_bytes=2 * GIB)))
    assert findings(ID, two) == ()
    unknown = changed(workstation(), gpus=(gpu(0, memory_bytes=None), gpu(1, memory_bytes=GIB)))
    assert findings(ID, unknown) == ()


def test_six_gibibytes_as_the_driver_counts_them_are_not_small() -> None:
    assert findings(ID, changed(workstation(), gpus__0__memory_bytes=6141 * 2**20)) == ()


def test_shared_memory_is_not_counted() -> None:
    facts = {"gpus__0__memory_bytes": 2 * GIB, "gpus__0__shared_memory": True}
    assert findings(ID, changed(workstation(), **facts)) == ()


def test_where_the_driver_does_not_say_shared_the_name_decides() -> None:
    facts = {"gpus__0__memory_bytes": 4 * GIB, "gpus__0__shared_memory": None}
    assert only(ID, changed(workstation(), **facts))
    assert findings(ID, changed(workstation(), gpus__0__name="Orin (nvgpu)", **facts)) == ()
