from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.host.jobs import small_model
from flatout.nouns.finding import Severity


def test_batch_small() -> None:
    profile = small_model(seen__memory_peak_bytes=6 * made.GIB, job__loaders__0__batch_size=16)
    finding = made.only("batch-small", profile)
    assert (finding.code, finding.severity, finding.boost) == (
        "HOST002",
        Severity.NOTE,
        "batch-size",
    )
    assert "batch_size=32" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(10.0)  # 32 samples in the same 20 ms
    full = made.changed(profile, seen__memory_peak_bytes=70 * made.GIB)
    assert made.findings("batch-small", full) == ()
    unknown = made.changed(profile, seen__memory_total_bytes=None)
    assert made.findings("batch-small", unknown) == ()
