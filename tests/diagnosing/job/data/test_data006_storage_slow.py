from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import few
from flatout.nouns.host_time import HostTime


def test_storage_slow() -> None:
    profile = few(8, busy_ms=200.0)
    finding = made.only("storage-slow", profile)
    assert finding.code == "DATA006"
    assert "84% of their time" in finding.title
    assert made.saved_ms(finding, profile) == pytest.approx(60, abs=1)
    assert made.findings("storage-slow", few(8, busy_ms=1200.0)) == ()
    assert made.findings("storage-slow", few(8, busy_ms=None)) == ()
    assert made.findings("storage-slow", made.profile(seen__worker_cpu_s=0.1)) == ()


@pytest.mark.parametrize(("idle_share", "count"), [(0.6, 1), (0.05, 0)])
def test_workers_without_a_core_wait_for_no_storage(idle_share: float, count: int) -> None:
    profile = few(8, busy_ms=200.0)
    step_ms = profile.anatomy.step_ms
    host = HostTime(10, step_ms, (), worker_idle_ms=idle_share * 8 * step_ms, idle_known=True)
    found = made.findings("storage-slow", dataclasses.replace(profile, host=host))
    assert len(found) == count
