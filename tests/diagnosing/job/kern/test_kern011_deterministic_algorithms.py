from __future__ import annotations

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from machines.healthy import changed


def test_deterministic_algorithms() -> None:
    filling = operator("aten::fill_", Kind.ELEMENTWISE, 7.0)
    job = changed(of(profile(), filling), seen__deterministic=True)
    finding = only("deterministic-algorithms", job)
    assert (finding.code, finding.severity) == ("KERN011", Severity.WARNING)
    assert saved_ms(finding, job) == pytest.approx(7.0, rel=0.01)
    assert only("deterministic-algorithms", profile(job__deterministic=True)).gain is None
    assert findings("deterministic-algorithms", of(profile(), filling)) == ()
