from __future__ import annotations

import pytest

from diagnosing.job.made import cpu_profile, findings, only, saved_ms


def test_profiler_left_on() -> None:
    job = cpu_profile(seen__profiler=True, operators__0__calls=4000.0)
    finding = only("profiler-left-on", job)
    assert finding.code == "LOOP002"
    assert saved_ms(finding, job) == pytest.approx(8.0, rel=0.01), "no more than Python takes"
    assert findings("profiler-left-on", cpu_profile()) == ()


def test_its_cost_is_measured_where_the_program_ran_without_it() -> None:
    job = cpu_profile(
        seen__profiler=True, seen__profiler_step_s=0.6, seen__profiler_where="train.py:12"
    )
    finding = only("profiler-left-on", job)
    assert finding.where == "train.py:12"
    assert "600 ms with it and 300 ms without it" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(150.0), "300 ms more for 300: twice as fast"
    free = cpu_profile(seen__profiler=True, seen__profiler_step_s=0.3)
    assert only("profiler-left-on", free).gain is None, "it cost nothing"
