from __future__ import annotations

import pytest

from diagnosing.job.made import GIB, codes, findings, only, profile, saved_ms
from diagnosing.job.mem.jobs import MALLOC
from machines.healthy import changed


def test_allocator_retries() -> None:
    job = profile(seen__alloc_retries=4, seen__memory_peak_bytes=78 * GIB)
    finding = only("allocator-retries", job)
    assert (finding.code, finding.boost) == ("MEM001", "allocator")
    assert "78 GiB of 80 GiB in use at most" in finding.evidence
    assert finding.gain is None
    waiting = changed(job, gaps=(*job.gaps, MALLOC))
    assert saved_ms(only("allocator-retries", waiting), waiting) == pytest.approx(9.0, rel=0.01)
    assert "MEM003" not in codes(waiting)
    assert "MEM010" not in codes(waiting)
    assert findings("allocator-retries", profile()) == ()
