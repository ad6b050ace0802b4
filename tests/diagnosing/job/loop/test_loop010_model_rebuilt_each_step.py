from __future__ import annotations

import pytest

from diagnosing.job.loop.jobs import calling
from diagnosing.job.made import findings, only, saved_ms


def test_model_rebuilt_each_step() -> None:
    job = calling("Module()", 0.06, detail="ResNet")
    finding = only("model-rebuilt-each-step", job)
    assert (finding.code, finding.where) == ("LOOP010", "train.py:90")
    assert "ResNet is rebuilt" in finding.title
    assert saved_ms(finding, job) == pytest.approx(60, rel=0.01)
    assert findings("model-rebuilt-each-step", calling("Module()", 0.0002)) == ()
