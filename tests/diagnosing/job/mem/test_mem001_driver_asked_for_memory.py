from __future__ import annotations

import pytest

from diagnosing.job.made import GIB, codes, only, profile, saved_ms
from diagnosing.job.made_parts import CONV
from diagnosing.job.mem.jobs import MALLOC
from machines.healthy import changed

CHECK = "driver-asked-for-memory"


def test_allocator_retries() -> None:
    job = profile(seen__alloc_retries=4, seen__memory_peak_bytes=78 * GIB)
    finding = only(CHECK, job)
    assert (finding.code, finding.boost) == ("MEM001", "allocator")
    assert "78 GiB of 80 GiB in use at most" in finding.evidence
    assert finding.gain is None
    waiting = changed(job, gaps=(*job.gaps, MALLOC))
    assert saved_ms(only(CHECK, waiting), waiting) == pytest.approx(9.0, rel=0.01)
    assert "tried again 4 times" in only(CHECK, waiting).title
    assert "MEM003" not in codes(waiting)


def test_device_memory_asked_each_step() -> None:
    job = profile(gaps=(MALLOC,))
    finding = only(CHECK, job)
    assert (finding.code, finding.where, finding.boost) == ("MEM001", str(CONV), "allocator")
    assert finding.title == "the driver is asked for memory in each step: 9.00 ms"
    assert saved_ms(finding, job) == pytest.approx(9.0, rel=0.01)
    full = changed(job, seen__memory_peak_bytes=78 * GIB)
    assert {"MEM001", "MEM003"} <= set(codes(full))
