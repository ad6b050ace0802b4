from __future__ import annotations

from diagnosing.job.made import GIB, findings, only, profile
from flatout.nouns.finding import Severity
from machines.healthy import changed


def test_memory_fragmented() -> None:
    job = profile(seen__memory_peak_bytes=40 * GIB, seen__memory_reserved_bytes=76 * GIB)
    finding = only("memory-fragmented", job)
    assert (finding.code, finding.boost, finding.severity) == (
        "MEM002",
        "allocator",
        Severity.WARNING,
    )
    assert "36 GiB" in finding.title
    roomy = changed(job, seen__memory_reserved_bytes=60 * GIB)
    assert only("memory-fragmented", roomy).severity is Severity.NOTE
    assert findings("memory-fragmented", profile()) == ()
