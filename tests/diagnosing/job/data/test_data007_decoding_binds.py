from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import few


def test_decoding_binds() -> None:
    profile = few(15, busy_ms=2350.0, job__cores=16)
    finding = made.only("decoding-binds", profile)
    assert finding.code == "DATA007"
    assert "a sample costs 9.18 ms, decoding a picture 4.17 ms" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(60, abs=1)
    assert made.findings("decoding-binds", few(8, busy_ms=1200.0, job__cores=32)) == ()
    assert made.findings("decoding-binds", few(15, busy_ms=300.0, job__cores=16)) == ()
