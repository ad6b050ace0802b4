from __future__ import annotations

from diagnosing.job.loop.jobs import calling
from diagnosing.job.made import findings, only


def test_optimizer_rebuilt_each_step() -> None:
    job = calling("Optimizer()", 0.0004, detail="AdamW")
    finding = only("optimizer-rebuilt-each-step", job)
    assert (finding.code, finding.where, finding.gain) == ("LOOP011", "train.py:90", None)
    assert "its state is lost" in finding.title
    assert findings("optimizer-rebuilt-each-step", calling("Optimizer()", 0.1, calls=0.1)) == ()
