from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import few


def test_storage_slow() -> None:
    profile = few(8, busy_ms=200.0)
    finding = made.only("storage-slow", profile)
    assert finding.code == "DATA006"
    assert "84% of their time" in finding.title
    assert made.saved_ms(finding, profile) == pytest.approx(60, abs=1)
    assert made.findings("storage-slow", few(8, busy_ms=1200.0)) == ()
    assert made.findings("storage-slow", few(8, busy_ms=None)) == ()
    assert made.findings("storage-slow", made.profile(seen__worker_cpu_s=0.1)) == ()


def test_storage_slow_hides_that_there_are_many_workers() -> None:
    codes = made.codes(few(32, busy_ms=200.0, job__cores=8))
    assert "DATA006" in codes and "DATA003" not in codes
