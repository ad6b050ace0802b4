from __future__ import annotations

import pytest

from diagnosing.job.made import GIB, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind


def test_memory_mostly_empty() -> None:
    parts = {Kind.WAIT_HOST: 40.0, Kind.OPTIMIZER: 10.0}
    job = profile(parts, seen__memory_peak_bytes=8 * GIB)
    finding = only("memory-mostly-empty", job)
    assert finding.code == "MEM004"
    fixed = 25_557_032 * 16
    assert (0.85 * 80 * GIB - fixed) / (8 * GIB - fixed) > 8
    assert "8 times as large" in finding.title
    assert "batch size 256, 2048 would fit" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(50.0 * 7 / 8, rel=0.01)
    assert findings("memory-mostly-empty", profile(parts)) == ()
    fed = profile({Kind.WAIT_HOST: 0.2, Kind.OPTIMIZER: 0.2}, seen__memory_peak_bytes=8 * GIB)
    assert findings("memory-mostly-empty", fed) == (), "nothing is gained by a larger batch"
