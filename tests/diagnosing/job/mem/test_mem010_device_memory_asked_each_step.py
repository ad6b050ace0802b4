from __future__ import annotations

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from diagnosing.job.made_parts import CONV
from diagnosing.job.mem.jobs import MALLOC


def test_device_memory_asked_each_step() -> None:
    job = profile(gaps=(MALLOC,))
    finding = only("device-memory-asked-each-step", job)
    assert (finding.code, finding.where, finding.boost) == ("MEM010", str(CONV), "allocator")
    assert saved_ms(finding, job) == pytest.approx(9.0, rel=0.01)
    assert findings("device-memory-asked-each-step", profile()) == ()
