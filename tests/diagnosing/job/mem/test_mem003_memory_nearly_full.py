from __future__ import annotations

from diagnosing.job.made import GIB, findings, only, profile
from flatout.nouns.finding import Severity


def test_memory_nearly_full() -> None:
    finding = only("memory-nearly-full", profile(seen__memory_peak_bytes=77 * GIB))
    assert (finding.code, finding.severity) == ("MEM003", Severity.NOTE)
    assert "96%" in finding.title
    assert findings("memory-nearly-full", profile()) == ()
    assert findings("memory-nearly-full", profile(seen__memory_total_bytes=None)) == ()
