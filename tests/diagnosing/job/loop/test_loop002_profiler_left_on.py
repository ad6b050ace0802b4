from __future__ import annotations

import pytest

from diagnosing.job.made import cpu_profile, findings, only, saved_ms


def test_profiler_left_on() -> None:
    job = cpu_profile(seen__profiler=True, operators__0__calls=4000.0)
    finding = only("profiler-left-on", job)
    assert finding.code == "LOOP002"
    assert saved_ms(finding, job) == pytest.approx(8.0, rel=0.01), "no more than Python takes"
    assert findings("profiler-left-on", cpu_profile()) == ()
