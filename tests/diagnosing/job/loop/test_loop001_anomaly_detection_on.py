from __future__ import annotations

import pytest

from diagnosing.job.made import changes, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Gap, Operator
from machines.healthy import changed


def test_anomaly_detection() -> None:
    looking = (
        Operator("aten::isnan", Kind.ELEMENTWISE, 200, 1.0, 4.0),
        Operator("aten::any", Kind.REDUCTION, 200, 1.0, 2.0),
    )
    gap = Gap(Kind.WAIT_SYNC, ms=30.0, count=200, doing="aten::is_nonzero")
    job = profile({Kind.WAIT_SYNC: 30.0}, seen__anomaly=True, operators=looking, gaps=(gap,))
    finding = only("anomaly-detection-on", job)
    assert (finding.code, finding.where) == ("LOOP001", None)
    placed = only("anomaly-detection-on", changed(job, seen__anomaly_where="train.py:4"))
    assert placed.where == "train.py:4"
    assert "# train.py:4" in changes(placed)
    assert saved_ms(finding, job) == pytest.approx(4 + 2 + 200 * 0.05 + 30, rel=0.01)
    assert findings("anomaly-detection-on", changed(job, seen__anomaly=False)) == ()
