from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines import broken_shared
from machines.healthy import GIB, changed, container, cpu_server, h100, mac, memory, workstation

ID = "memory-small"


def test_less_than_the_gpu() -> None:
    finding = only(ID, changed(workstation(), memory=memory(16)))
    assert (finding.code, finding.severity) == ("ENV064", Severity.WARNING)
    assert "less than the GPU has" in finding.title
    assert "16 GiB; GPU memory 24 GiB" in finding.evidence


def test_less_than_eight_gibibytes() -> None:
    finding = only(ID, changed(cpu_server(), memory=memory(4)))
    assert finding.severity is Severity.WARNING
    assert "4.0 GiB" in finding.title


def test_a_limit_counts_like_memory() -> None:
    finding = only(ID, changed(container(), memory__limit_bytes=8 * GIB))
    assert "limited to 8.0 GiB by the cgroup" in finding.evidence
    assert "docker run --memory=57g" in commands(finding)


def test_less_than_all_gpus_together_is_a_note() -> None:
    finding = only(ID, changed(h100(), memory=memory(256)))
    assert finding.severity is Severity.NOTE
    assert "640 GiB in 8" in finding.evidence


def test_shared_memory_is_no_gpu_memory() -> None:
    assert findings(ID, changed(mac(), memory__total_bytes=32 * GIB)) == ()


def test_memory_sold_as_eight_gibibytes_is_enough() -> None:
    box = changed(cpu_server(), memory=memory(8), memory__total_bytes=int(7.6 * GIB))
    assert findings(ID, box) == ()


def test_a_slice_of_a_gpu_does_not_count_as_the_whole() -> None:
    assert findings(ID, broken_shared.pod_with_slice()) == ()
